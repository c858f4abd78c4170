"""The handlers of inference.GRPCInferenceService."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from grpc import StatusCode

from penstock.errors import InvalidRequest
from penstock_gateway.completions.endpoint import CompletionRequest
from penstock_gateway.request.body import TextsAmount
from penstock_gateway.request.tokenising import off_the_loop, tenant
from penstock_rpc.arriving import arriving
from penstock_rpc.calls import Calls, Context, Handlers, asking, methods_in, parsed
from penstock_rpc.frames import JsonStream
from penstock_rpc.kserve.state import SERVICE, check_version
from penstock_rpc.kserve.tensors import EMBEDDED, GENERATED, InferFormat, Tensor, inputs_of
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


# From a ModelInferRequest to a body of the HTTP API.

TEXT = "text_input"
TOKENS = "input_ids"
STREAM = "stream"
SAMPLING = "sampling_parameters"
MAX_SAMPLING = 1 << 20
"""Characters of them."""
MAX_CONTROLS = 1 << 18
"""Control characters of an input, each of which is six bytes of JSON."""
MAX_ROWS = 16_384
"""Prompts of token ids."""
MAX_PARAMETERS = 1024
"""Entries of parameters, and of sampling_parameters."""
_CONTROLS = bytes(each for each in range(32) if each not in b"\t\n\r")

_OWN = ("model", "prompt", "input", "stream", "stream_options", "encoding_format")
"""Fields of the body that something else says."""


def _numeric_fields() -> frozenset[str]:
    """Fields of a completion that take numbers or flags, and no text."""
    about: Any = msgspec.inspect.type_info(CompletionRequest)
    numbers = (msgspec.inspect.IntType, msgspec.inspect.FloatType, msgspec.inspect.BoolType)
    found = set()
    for field in about.fields:
        kind = field.type
        kinds = kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
        if all(isinstance(each, (*numbers, msgspec.inspect.NoneType)) for each in kinds):
            found.add(field.name)
    return frozenset(found)


_NUMERIC = _numeric_fields()


@dataclass(frozen=True, slots=True)
class InferBody:
    """What a request asks the HTTP API for."""

    path: str
    json: bytes
    streamed: bool


def body_of(message: ModelInferRequest, *, pools: bool, may_stream: bool) -> InferBody:
    """pools: the model computes vectors.  Raises InvalidRequest."""
    found = inputs_of(message)
    known = (TEXT, TOKENS) if pools else (TEXT, TOKENS, STREAM, SAMPLING)
    for name in found:
        if name not in known:
            raise InvalidRequest(
                f"the model has no input {name[:100]!r}; it has {', '.join(known)}",
                param=name[:100],
            )
    _check_outputs(message, EMBEDDED if pools else GENERATED)
    streamed = _flag(found)
    if streamed and not may_stream:
        raise InvalidRequest("ModelInfer does not stream; ModelStreamInfer does", param=STREAM)
    given = _given(found)
    body: dict[str, Any] = {**_parameters(message), **_sampling(found)}
    for name in _OWN:
        if name in body:
            raise InvalidRequest(
                f"{name} is not a parameter; use the request's field or input for it",
                param=name,
            )
    body["model"] = message.model_name
    if pools:
        body |= {"input": given, "encoding_format": "base64"}
    else:
        body |= {"prompt": given, "stream": streamed}
    path = "/v1/embeddings" if pools else "/v1/completions"
    return InferBody(path, msgspec.json.encode(body), streamed)


def _check_outputs(message: ModelInferRequest, known: tuple[str, ...]) -> None:
    for output in message.outputs:
        if output.name not in known:
            raise InvalidRequest(
                f"the model has no output {output.name[:100]!r}; it has {', '.join(known)}",
                param="outputs",
            )


def _given(found: dict[str, Tensor]) -> list[Any]:
    """The prompt: texts, or token ids, or rows of them."""
    if (TEXT in found) == (TOKENS in found):
        raise InvalidRequest(f"give either {TEXT} or {TOKENS} as input", param="inputs")
    if TOKENS in found:
        return _rows(found[TOKENS])
    texts = _texts(TEXT, found[TEXT])
    if not texts:
        raise InvalidRequest(f"{TEXT} is empty", param=TEXT)
    return texts


def _rows(tensor: Tensor) -> list[Any]:
    datatype, shape, ids = tensor
    if not datatype.startswith(("INT", "UINT")):
        raise InvalidRequest(f"{TOKENS} is {datatype}; it must be INT64", param=TOKENS)
    if len(shape) > 2:
        raise InvalidRequest(
            f"{TOKENS} has {len(shape)} dimensions; it must be the token ids of one prompt, or a "
            "row of them for each",
            param=TOKENS,
        )
    if len(shape) < 2 or not ids:
        return list(ids)
    length = shape[1]
    if len(ids) > MAX_ROWS * length:
        raise InvalidRequest(
            f"{TOKENS} has {len(ids) // length} rows; at most {MAX_ROWS} are allowed", param=TOKENS
        )
    return [list(ids[at : at + length]) for at in range(0, len(ids), length)]


def _texts(name: str, tensor: Tensor) -> list[str]:
    datatype, _, values = tensor
    if datatype != "BYTES":
        raise InvalidRequest(f"{name} is {datatype}; it must be BYTES", param=name)
    elements = cast("Sequence[bytes]", values)
    controls = sum(len(each) - len(each.translate(None, _CONTROLS)) for each in elements)
    if controls > MAX_CONTROLS:
        raise InvalidRequest(
            f"{name} has {controls} control characters; at most {MAX_CONTROLS} are allowed",
            param=name,
        )
    try:
        return [each.decode() for each in elements]
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name} is not UTF-8", param=name) from None


def _flag(found: dict[str, Tensor]) -> bool:
    if STREAM not in found:
        return False
    datatype, _, values = found[STREAM]
    if datatype != "BOOL" or len(values) != 1:
        raise InvalidRequest(f"{STREAM} must be one BOOL", param=STREAM)
    return bool(values[0])


def _sampling(found: dict[str, Tensor]) -> dict[str, Any]:
    """Fields of /v1/completions, as JSON. Triton's clients send numbers as strings there, too."""
    if SAMPLING not in found:
        return {}
    texts = _texts(SAMPLING, found[SAMPLING])
    if len(texts) == 1:
        if len(texts[0]) > MAX_SAMPLING:
            raise InvalidRequest(
                f"{SAMPLING} has {len(texts[0])} characters; at most {MAX_SAMPLING} are allowed",
                param=SAMPLING,
            )
        TextsAmount().add(texts[0], SAMPLING)
    read: Callable[[str], Any] = msgspec.json.decode
    try:
        fields = read(texts[0]) if len(texts) == 1 else None
    except (msgspec.DecodeError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise InvalidRequest(f"{SAMPLING} must be one JSON object", param=SAMPLING)
    _check_count(SAMPLING, len(fields))
    return {name: _number(name, value) for name, value in fields.items()}


def _number(name: str, value: Any) -> Any:
    if not isinstance(value, str) or name not in _NUMERIC:
        return value
    try:
        number = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return value
    return number if isinstance(number, (bool, int, float)) else value


def _check_count(name: str, count: int) -> None:
    if count > MAX_PARAMETERS:
        raise InvalidRequest(
            f"{name} has {count} entries; at most {MAX_PARAMETERS} are allowed", param=name
        )


def _parameters(message: ModelInferRequest) -> dict[str, Any]:
    _check_count("parameters", len(message.parameters))
    found: dict[str, Any] = {}
    for name, value in message.parameters.items():
        kind = value.WhichOneof("parameter_choice")
        if kind is None or name.startswith("triton_"):
            continue
        given = getattr(value, kind)
        if isinstance(given, float) and not math.isfinite(given):
            # JSON would have null, which is the default.
            raise InvalidRequest(f"{name[:100]} is {given}; it must be finite", param=name[:100])
        found[name] = given
    return found
