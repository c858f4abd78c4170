"""penstock.v1.OpenAI: the HTTP API's JSON over gRPC."""

from __future__ import annotations

from typing import Any

from grpc import StatusCode

from penstock_gateway.rpc.calls import Calls, Context, parsed
from penstock_gateway.rpc.events import JsonStream
from penstock_gateway.rpc.methods import Handlers
from penstock_gateway.rpc.protos import openai_pb2
from penstock_gateway.rpc.protos.openai_pb2 import JsonReply, JsonRequest, PostRequest
from penstock_gateway.rpc.scope import scope_of
from penstock_gateway.rpc.status import RefusedCall

OPENAI = openai_pb2.DESCRIPTOR.services_by_name["OpenAI"]
LONGEST_PATH = 200
"""Characters."""


def handlers(calls: Calls) -> Handlers:
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
