"""Turns replies of the HTTP API into ModelInferResponses."""

from __future__ import annotations

from array import array
from base64 import b64decode

import msgspec

from penstock_gateway.rpc.kserve.tensors import add_rows, add_strings
from penstock_gateway.rpc.protos.kserve_pb2 import ModelInferRequest, ModelInferResponse

GENERATED = ("text_output", "finish_reason")
EMBEDDED = ("embedding",)
"""Outputs of models that generate, and of those that embed."""
FINAL = "triton_final_response"
INDEX = "index"
"""The parameter that says which sequence a streamed response goes on with."""


class _Choice(msgspec.Struct):
    index: int
    text: str
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    model: str


class _Vector(msgspec.Struct):
    index: int
    embedding: str


class _Vectors(msgspec.Struct):
    data: list[_Vector]
    model: str


_completions = msgspec.json.Decoder(_Completion)
_vectors = msgspec.json.Decoder(_Vectors)


class InferFormat:
    """Writes the responses to one request."""

    def __init__(self, request: ModelInferRequest) -> None:
        self._id = request.id
        self._model = request.model_name
        self._wanted = {output.name for output in request.outputs} or {*GENERATED, *EMBEDDED}
        # Typed contents only where the request has them.
        self._raw = bool(request.raw_input_contents)

    def text(self, completion: bytes) -> ModelInferResponse:
        """The reply to a completion, given as JSON."""
        return self._of(_completions.decode(completion))

    def chunk(self, chunk: bytes) -> ModelInferResponse:
        """The reply to a completion's chunk, given as JSON, which has one choice."""
        found = _completions.decode(chunk)
        reply = self._of(found)
        for choice in found.choices[:1]:
            reply.parameters[INDEX].int64_param = choice.index
        return reply

    def _of(self, found: _Completion) -> ModelInferResponse:
        choices = sorted(found.choices, key=lambda choice: choice.index)
        reply = self._reply(found.model)
        texts = [choice.text.encode() for choice in choices]
        reasons = [(choice.finish_reason or "").encode() for choice in choices]
        for name, values in (("text_output", texts), ("finish_reason", reasons)):
            if name in self._wanted:
                add_strings(reply, name, values, raw=self._raw)
        return reply

    def vectors(self, embeddings: bytes) -> ModelInferResponse:
        """The reply to embeddings, given as JSON, in base64: as many rows as texts."""
        found = _vectors.decode(embeddings)
        rows = [array("f", b64decode(each.embedding)) for each in found.data]
        reply = self._reply(found.model)
        add_rows(reply, "embedding", rows, raw=self._raw)
        return reply

    def final(self) -> ModelInferResponse:
        """What ends a request's responses in a stream, as Triton has it."""
        reply = self._reply(self._model)
        reply.parameters[FINAL].bool_param = True
        return reply

    def _reply(self, model: str) -> ModelInferResponse:
        return ModelInferResponse(model_name=model, model_version="1", id=self._id)
