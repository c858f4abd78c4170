"""The handlers of vllm.Inference and vllm.Control."""

from __future__ import annotations

from penstock_gateway.rpc.calls import Calls, Context, parsed
from penstock_gateway.rpc.frames import frames_in
from penstock_gateway.rpc.methods import Handlers, asking, methods_in
from penstock_gateway.rpc.protos import control_pb2, inference_pb2
from penstock_gateway.rpc.protos.inference_pb2 import GenerateRequest
from penstock_gateway.rpc.scope import scope_of
from penstock_gateway.rpc.status import failure
from penstock_gateway.rpc.vllm.generate_reply import merged

INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["Inference"]
CONTROL = control_pb2.DESCRIPTOR.services_by_name["Control"]

MOST_MERGED = 1 << 18
"""Bytes of messages that are made one: more would hold other streams up."""


def handlers(calls: Calls) -> Handlers:
    """Handlers by the methods' paths."""
    return {
        "/vllm.Inference/Generate": calls.unary(_Generate(calls, "/vllm.Inference/Generate").whole),
        "/vllm.Inference/GenerateStream": calls.streaming(
            _Generate(calls, "/vllm.Inference/GenerateStream").stream
        ),
        **{path: asking(calls, path, kind) for path, kind in methods_in(CONTROL).items()},
    }


class _Generate:
    def __init__(self, calls: Calls, method: str) -> None:
        self._calls = calls
        self._method = method

    async def whole(self, request: bytes, context: Context) -> bytes:
        message: GenerateRequest = await parsed(GenerateRequest, request)
        name = message.request_id
        scope = scope_of(context, self._method, message=message, request_id=name)
        async with self._calls.exchange(context, scope, request_id=name) as exchange:
            return await exchange.whole()

    async def stream(self, request: bytes, context: Context) -> None:
        message: GenerateRequest = await parsed(GenerateRequest, request)
        name = message.request_id
        scope = scope_of(context, self._method, message=message, request_id=name)
        async with self._calls.exchange(context, scope, request_id=name) as exchange:
            async for piece in exchange.pieces():
                frames = list(frames_in(piece))
                good = [frame for failed, frame in frames if not failed]
                few = merged(good) if len(good) > 1 and len(piece) <= MOST_MERGED else good
                for each in few:
                    await self._calls.write(context, each)
                if len(good) < len(frames):
                    raise failure(frames[-1][1])
