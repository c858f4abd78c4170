"""vllm.Inference: Generate and GenerateStream."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import msgspec
from starlette.types import Receive, Scope

from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock_gateway.completions.endpoint import CompletionRequest, Completions
from penstock_gateway.generate.job import PreparedRequest
from penstock_gateway.generate.reply import ReplyHead
from penstock_gateway.http.errors import HTTPError, leaving
from penstock_gateway.http.operations import OperationRoute
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.request.endpoint import Headers
from penstock_gateway.service import Service
from penstock_rpc.frames import FRAMES, failed_frame
from penstock_rpc.protos.inference_pb2 import GenerateRequest
from penstock_rpc.scope import message_of, operation
from penstock_rpc.vllm.generate_reply import GenerateSpec
from penstock_rpc.vllm.generate_request import GenerateBody, body_of

GENERATE = operation(
    "/vllm.Inference/Generate", "Generates text", counted=True, traced_as="text_completion"
)
GENERATE_STREAM = operation(
    "/vllm.Inference/GenerateStream",
    "Generates text as a stream",
    counted=True,
    traced_as="text_completion",
)

SMALL = 2048
"""Bytes of a message from which on a preparer makes the request of it."""


class GenerateCall(Completions):
    """The method that answers one prompt with its sequences."""

    id_prefix = ""
    stream_form = FRAMES
    reply_spec = GenerateSpec
    default_max_tokens = 20

    def __init__(self, service: Service, *, streamed: bool) -> None:
        super().__init__(service)
        self._streamed = streamed

    async def given(self, scope: Scope, receive: Receive) -> bytes | CompletionRequest:
        message = message_of(scope)
        if self._service.draining:
            raise leaving()
        if message.ByteSize() > SMALL:
            return cast("bytes", message.SerializeToString())
        return body_of(message, streamed=self._streamed)

    def understood(self, body: bytes, headers: Headers) -> CompletionRequest:
        return body_of(GenerateRequest.FromString(body), streamed=self._streamed)

    def decoded_light(self, written: bytes) -> CompletionRequest:
        return _light.decode(written)

    def check(self, request: CompletionRequest) -> None:
        if (request.n or 1) > 1 and not self._streamed:
            raise InvalidRequest(
                f"sampling.num_sequences is {request.n}; Generate returns one sequence, "
                "GenerateStream returns several",
                param="sampling.num_sequences",
            )

    async def prepare(
        self, request: CompletionRequest, engine: EngineInfo, head: ReplyHead, lease: MediaLease
    ) -> PreparedRequest:
        if request.temperature is None and engine.welcome.generation.temperature is None:
            request = msgspec.structs.replace(request, temperature=0.0)
        prepared = await super().prepare(request, engine, head, lease)
        shown = cast("GenerateBody", request).shown
        return replace(prepared, reply=GenerateSpec(shown, prepared.prompt_token_ids[0]))

    def failure(self, error: HTTPError) -> bytes:
        return failed_frame(error)


_light = msgspec.json.Decoder(GenerateBody)


def routes(service: Service) -> list[OperationRoute]:
    """The routes of the streamed and the unstreamed method."""
    return [
        GENERATE.route(GenerateCall(service, streamed=False)),
        GENERATE_STREAM.route(GenerateCall(service, streamed=True)),
    ]
