"""The handlers of inference.GRPCInferenceService."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from grpc import StatusCode

from penstock_gateway.rpc.arriving import arriving
from penstock_gateway.rpc.calls import Calls, Context, parsed
from penstock_gateway.rpc.events import JsonStream
from penstock_gateway.rpc.kserve.infer_reply import InferFormat
from penstock_gateway.rpc.kserve.infer_request import InferBody, body_of
from penstock_gateway.rpc.kserve.state import SERVICE, check_version
from penstock_gateway.rpc.methods import Handlers, asking, methods_in
from penstock_gateway.rpc.protos import kserve_pb2
from penstock_gateway.rpc.protos.kserve_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from penstock_gateway.rpc.scope import scope_of
from penstock_gateway.rpc.served import pools
from penstock_gateway.rpc.status import RefusedCall, SlowReader, refused_by

KSERVE = kserve_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
INFER = f"{SERVICE}/ModelInfer"
STREAM_INFER = f"{SERVICE}/ModelStreamInfer"
MOST_AT_ONCE = 64
"""Requests of one stream that are worked at; the next one is not read before one ends."""
IDLE = 900.0
"""Seconds that a stream may be open without a request."""


def handlers(calls: Calls) -> Handlers:
    """Handlers by the methods' paths."""
    infer = _Infer(calls)
    states = {
        path: asking(calls, path, kind)
        for path, kind in methods_in(KSERVE).items()
        if path not in (INFER, STREAM_INFER)
    }
    return {
        **states,
        INFER: calls.unary(infer.whole),
        STREAM_INFER: calls.conversing(infer.stream),
    }


class _Infer:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def whole(self, request: bytes, context: Context) -> bytes:
        message: ModelInferRequest = await parsed(ModelInferRequest, request)
        body = self._body(message, may_stream=False)
        reply = await self._whole(message, body, context, INFER, context)
        return reply.SerializeToString()

    async def stream(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """What is wrong with a request is said in a response, and the stream goes on."""
        room = asyncio.Semaphore(MOST_AT_ONCE)
        running: set[asyncio.Task[None]] = set()
        asked = arriving(requests, self._calls.service, idle=IDLE, busy=lambda: bool(running))
        writing = asyncio.Lock()

        def ended(task: asyncio.Task[None]) -> None:
            running.discard(task)
            room.release()

        async with asyncio.TaskGroup() as group:
            try:
                asked = arriving(
                    requests, self._calls.service, idle=IDLE, busy=lambda: bool(running)
                )
                async for request in asked:
                    await room.acquire()
                    task = group.create_task(self._one(request, context, writing))
                    running.add(task)
                    task.add_done_callback(ended)
            except TimeoutError:
                raise RefusedCall(
                    StatusCode.DEADLINE_EXCEEDED, f"the stream had no request for {IDLE:g} seconds"
                ) from None

    async def _one(self, request: bytes, context: Context, writing: asyncio.Lock) -> None:
        message = ModelInferRequest()
        try:
            message = await parsed(ModelInferRequest, request)
            async for reply in self._replies(message, context):
                async with writing:
                    answer = ModelStreamInferResponse(infer_response=reply)
                    await self._calls.write(context, answer.SerializeToString())
        except SlowReader:
            raise
        except Exception as error:
            refused = refused_by(error)
            failed = ModelStreamInferResponse(error_message=refused.details or refused.code.name)
            failed.infer_response.id = message.id
            async with writing:
                await self._calls.write(context, failed.SerializeToString())

    async def _replies(
        self, message: ModelInferRequest, context: Context
    ) -> AsyncIterator[ModelInferResponse]:
        body = self._body(message, may_stream=True)
        form = InferFormat(message)
        if not body.streamed:
            yield await self._whole(message, body, context, STREAM_INFER, None)
            return
        scope = scope_of(
            context, STREAM_INFER, path=body.path, size=len(body.json), request_id=message.id
        )
        async with self._calls.exchange(None, scope, body.json) as exchange:
            stream = JsonStream(exchange.headers.get(b"content-type", b""))
            async for piece in exchange.pieces():
                documents, failed = stream.feed(piece)
                for document in documents:
                    yield form.chunk(document)
                if failed is not None:
                    raise failed
        yield form.final()

    def _body(self, message: ModelInferRequest, *, may_stream: bool) -> InferBody:
        check_version(message.model_version)
        # Whether the caller may use it is checked with its key, where the body is read.
        pooled = pools(self._calls.service, message.model_name)
        return body_of(message, pools=pooled, may_stream=may_stream)

    async def _whole(
        self,
        message: ModelInferRequest,
        body: InferBody,
        context: Context,
        method: str,
        told: Context | None,
    ) -> ModelInferResponse:
        """told: whose initial metadata tell of the answer."""
        scope = scope_of(
            context, method, path=body.path, size=len(body.json), request_id=message.id
        )
        form = InferFormat(message)
        async with self._calls.exchange(told, scope, body.json) as exchange:
            answer = await exchange.whole()
        return form.vectors(answer) if body.path.endswith("embeddings") else form.text(answer)
