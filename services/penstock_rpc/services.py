"""Every service of gRPC: its routes in the application, and its handlers outside. Those of health,
of reflection and of OpenAI's JSON are here.

Health is that of /health/ready. Reflection, for clients without .proto files, reveals nothing about
this server beyond its version. Neither needs a key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any

import grpc
from grpc import StatusCode
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_reflection.v1alpha import reflection, reflection_pb2

from penstock.errors import InvalidRequest
from penstock_gateway.http.operations import OperationRoute
from penstock_gateway.service import Service
from penstock_rpc.arriving import arriving
from penstock_rpc.calls import Calls, Context, Handlers, parsed
from penstock_rpc.exchange import RunningCalls
from penstock_rpc.frames import JsonStream
from penstock_rpc.kserve import service as kserve
from penstock_rpc.kserve import state
from penstock_rpc.protos import openai_pb2
from penstock_rpc.protos.openai_pb2 import JsonReply, JsonRequest, PostRequest
from penstock_rpc.scope import scope_of
from penstock_rpc.status import RefusedCall, refused_by
from penstock_rpc.vllm import control, generate

HEALTH = "grpc.health.v1.Health"
LOOK_EVERY = 0.5
"""Seconds between looks, for those who watch."""
MOST_WATCHERS = 64
"""Most calls that watch the health at a time, as they need no key."""

_STATUS = HealthCheckResponse.ServingStatus


def _health(calls: Calls, services: Collection[str]) -> Handlers:
    """Handlers by the methods' paths. services: that can be asked about."""
    health = _Health(calls, services)
    return {
        f"/{HEALTH}/Check": calls.unary(health.check),
        f"/{HEALTH}/Watch": calls.streaming(health.watch),
    }


class _Health:
    def __init__(self, calls: Calls, services: Collection[str]) -> None:
        self._calls = calls
        self._services = frozenset(services) | {""}
        self._watchers = 0

    async def check(self, request: bytes, context: Context) -> bytes:
        name = (await parsed(HealthCheckRequest, request)).service
        if name not in self._services:
            raise RefusedCall(StatusCode.NOT_FOUND, f"there is no service {name[:100]!r} here")
        return HealthCheckResponse(status=self._status(name)).SerializeToString()

    async def watch(self, request: bytes, context: Context) -> None:
        name = (await parsed(HealthCheckRequest, request)).service
        if self._watchers >= MOST_WATCHERS:
            raise RefusedCall(
                StatusCode.RESOURCE_EXHAUSTED,
                f"{MOST_WATCHERS} calls to Watch are open, the maximum",
            )
        self._watchers += 1
        try:
            reported = None
            while True:
                leaves, status = self._calls.service.draining, self._status(name)
                if status != reported:
                    reported = status
                    reply = HealthCheckResponse(status=status)
                    await self._calls.write(context, reply.SerializeToString())
                if leaves:
                    return
                await asyncio.sleep(LOOK_EVERY)
        finally:
            self._watchers -= 1

    def _status(self, name: str) -> int:
        if name not in self._services:
            return int(_STATUS.SERVICE_UNKNOWN)
        ready = self._calls.service.unready_reason() is None
        return int(_STATUS.SERVING if ready else _STATUS.NOT_SERVING)


REFLECTION = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""Names of the service in its two versions, which have the same messages."""
REFLECTION_METHODS = tuple(f"/{name}/ServerReflectionInfo" for name in REFLECTION)
MOST_STREAMS = 16
LONGEST = 60.0
"""Seconds that a stream may last."""
LARGEST = 4096
"""Bytes of a request: it is sent back in the reply."""


def _reflection(services: Collection[str], service: Service) -> Handlers:
    """Handlers by the methods' paths."""
    handler = grpc.stream_stream_rpc_method_handler(
        _Reflection(services, service).answer,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return dict.fromkeys(REFLECTION_METHODS, handler)


class _Reflection:
    def __init__(self, services: Collection[str], service: Service) -> None:
        self._service = service
        self._known = reflection.aio.ReflectionServicer(services)
        self._streams = 0

    async def answer(self, requests: AsyncIterator[bytes], context: Any) -> None:
        if self._streams >= MOST_STREAMS:
            await context.abort(
                StatusCode.RESOURCE_EXHAUSTED,
                f"{MOST_STREAMS} reflection streams are open, the maximum",
            )
        self._streams += 1
        try:
            async with asyncio.timeout(LONGEST):
                asked = _messages(arriving(requests, self._service, idle=LONGEST))
                async for reply in self._known.ServerReflectionInfo(asked, context):
                    await context.write(reply)
        except TimeoutError:
            await context.abort(
                StatusCode.DEADLINE_EXCEEDED, f"a reflection stream may last {LONGEST:g} seconds"
            )
        except (RefusedCall, InvalidRequest) as error:
            refused = refused_by(error)
            await context.abort(refused.code, refused.details)
        finally:
            self._streams -= 1


async def _messages(requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    async for request in requests:
        if len(request) > LARGEST:
            raise RefusedCall(
                StatusCode.INVALID_ARGUMENT,
                f"the request has {len(request)} bytes; at most {LARGEST} are allowed here",
            )
        yield await parsed(reflection_pb2.ServerReflectionRequest, request)


OPENAI = openai_pb2.DESCRIPTOR.services_by_name["OpenAI"]
LONGEST_PATH = 200
"""Characters."""


def _openai(calls: Calls) -> Handlers:
    """Handlers by the methods' paths."""
    chat = _Posting(calls, "/penstock.v1.OpenAI/Chat", JsonRequest, "/v1/chat/completions")
    complete = _Posting(calls, "/penstock.v1.OpenAI/Complete", JsonRequest, "/v1/completions")
    embed = _Posting(calls, "/penstock.v1.OpenAI/Embed", JsonRequest, "/v1/embeddings")
    post = _Posting(calls, "/penstock.v1.OpenAI/Post", PostRequest)
    return {
        chat.method: calls.streaming(chat.stream),
        complete.method: calls.streaming(complete.stream),
        embed.method: calls.unary(embed.whole),
        post.method: calls.streaming(post.stream),
    }


class _Posting:
    """A method that posts to a path. path: empty: the request says it."""

    def __init__(self, calls: Calls, method: str, kind: type[Any], path: str = "") -> None:
        self.method = method
        self._calls = calls
        self._kind = kind
        self._path = path

    async def whole(self, request: bytes, context: Context) -> bytes:
        message: JsonRequest = await parsed(self._kind, request)
        body = message.json  # Each look at it makes a copy.
        scope = scope_of(context, self.method, path=self._path, size=len(body))
        async with self._calls.exchange(context, scope, body) as exchange:
            return JsonReply(json=[await exchange.whole()]).SerializeToString()

    async def stream(self, request: bytes, context: Context) -> None:
        message = await parsed(self._kind, request)
        path = self._path or _checked(message.path)
        body = message.json
        scope = scope_of(context, self.method, path=path, size=len(body))
        async with self._calls.exchange(context, scope, body) as exchange:
            stream = JsonStream(exchange.headers.get(b"content-type", b""))
            if not stream.streams:
                reply = JsonReply(json=[await exchange.whole()])
                await self._calls.write(context, reply.SerializeToString())
                return
            async for piece in exchange.pieces():
                documents, failed = stream.feed(piece)
                if documents:
                    reply = JsonReply(json=documents)
                    await self._calls.write(context, reply.SerializeToString())
                if failed is not None:
                    raise failed


def _checked(path: str) -> str:
    begin = path[: LONGEST_PATH + 1]
    plain = begin.isascii() and begin.isprintable() and not set(begin) & set("?#% ")
    if len(begin) > LONGEST_PATH or not begin.startswith("/") or not plain:
        raise RefusedCall(
            StatusCode.INVALID_ARGUMENT,
            f"path is {path[:LONGEST_PATH]!r}; it must be a path of the HTTP API, such as "
            f"/v1/rerank, of at most {LONGEST_PATH} characters, without a query",
        )
    return path


SERVED = (
    control.INFERENCE.full_name,
    control.CONTROL.full_name,
    OPENAI.full_name,
    kserve.KSERVE.full_name,
)


def routes_of(service: Service, running: RunningCalls) -> list[OperationRoute]:
    """Returns the application's routes in addition to the HTTP API."""
    return [
        *generate.routes(service),
        *control.routes(service, running),
        *state.routes(service),
    ]


def handlers_of(calls: Calls) -> Handlers:
    """Handlers of all services, by the methods' paths."""
    return {
        **control.handlers(calls),
        **_openai(calls),
        **kserve.handlers(calls),
        **_health(calls, SERVED),
        **_reflection((*SERVED, HEALTH, *REFLECTION), calls.service),
    }


def open_methods(service: Service) -> frozenset[str]:
    """Paths of methods that need no key."""
    routes = state.routes(service)
    return frozenset(
        {
            f"/{HEALTH}/Check",
            f"/{HEALTH}/Watch",
            *REFLECTION_METHODS,
            *(route.path for route in routes if route.operation.access == "open"),
        }
    )
