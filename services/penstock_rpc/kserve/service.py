"""The handlers of inference.GRPCInferenceService."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from grpc import StatusCode

from penstock_gateway.request.tokenising import off_the_loop, tenant
from penstock_rpc.arriving import arriving
from penstock_rpc.calls import Calls, Context, Handlers, asking, methods_in, parsed
from penstock_rpc.frames import JsonStream
from penstock_rpc.kserve.bodies import InferBody, body_of
from penstock_rpc.kserve.state import SERVICE, check_version
from penstock_rpc.kserve.tensors import InferFormat
from penstock_rpc.protos import kserve_pb2
from penstock_rpc.protos.kserve_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from penstock_rpc.scope import scope_of
from penstock_rpc.served import pools
from penstock_rpc.status import RefusedCall, SlowReader, refused_by

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
        body = await self._body(message, len(request), context, may_stream=False)
        reply = await self._whole(message, body, context, INFER, context)
        return reply.SerializeToString()

    async def stream(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Answers a stream of requests. What is wrong with one is said in its response, and the
        stream goes on."""
        room = asyncio.Semaphore(MOST_AT_ONCE)
        running: set[asyncio.Task[None]] = set()
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
            body = await self._body(message, len(request), context, may_stream=True)
            async for reply in self._replies(message, body, context):
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
        self, message: ModelInferRequest, body: InferBody, context: Context
    ) -> AsyncIterator[ModelInferResponse]:
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

    async def _body(
        self, message: ModelInferRequest, size: int, context: Context, *, may_stream: bool
    ) -> InferBody:
        """size: bytes of the message. A large one's tensors are unpacked in a thread, in the
        tenant's turn."""
        check_version(message.model_version)
        # Whether the caller may use it is checked with its key, where the body is read.
        pooled = pools(self._calls.service, message.model_name)
        tenant.set(self._calls.tenant_of(context.invocation_metadata() or ()))
        return await off_the_loop(
            lambda: body_of(message, pools=pooled, may_stream=may_stream), size
        )

    async def _whole(
        self,
        message: ModelInferRequest,
        body: InferBody,
        context: Context,
        method: str,
        answered: Context | None,
    ) -> ModelInferResponse:
        """answered: whose initial metadata describe the answer; None: nobody's."""
        scope = scope_of(
            context, method, path=body.path, size=len(body.json), request_id=message.id
        )
        form = InferFormat(message)
        async with self._calls.exchange(answered, scope, body.json) as exchange:
            answer = await exchange.whole()
        return form.vectors(answer) if body.path.endswith("embeddings") else form.text(answer)
