"""Server reflection, for clients without .proto files. It reveals nothing about this server beyond
its version, and needs no key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any

import grpc
from grpc import StatusCode
from grpc_reflection.v1alpha import reflection, reflection_pb2

from penstock.errors import InvalidRequest
from penstock_gateway.rpc.arriving import arriving
from penstock_gateway.rpc.calls import parsed
from penstock_gateway.rpc.methods import Handlers
from penstock_gateway.rpc.status import RefusedCall, refused_by
from penstock_gateway.service import Service

NAMES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""Names of the service in its two versions, which have the same messages."""
METHODS = tuple(f"/{name}/ServerReflectionInfo" for name in NAMES)
MOST_STREAMS = 16
LONGEST = 60.0
"""Seconds that a stream may last."""
LARGEST = 4096
"""Bytes of a request: it is sent back in the reply."""


def handlers(services: Collection[str], service: Service) -> Handlers:
    """Handlers by the methods' paths."""
    handler = grpc.stream_stream_rpc_method_handler(
        _Reflection(services, service).answer,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return dict.fromkeys(METHODS, handler)


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
