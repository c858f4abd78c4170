"""Turns request fields into SamplingParams: defaults, structured outputs, and the tokens left in
the context."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from penstock.client.generation_request import max_output
from penstock.config.settings import OversizedMaxTokens
from penstock.errors import Field, InvalidRequest
from penstock.protocol.to_frontend import Limits, Welcome
from penstock.request.sampling_params import MAX_SEED, RepetitionDetectionParams, SamplingParams
from penstock.request.structured_outputs import PARAM, StructuredOutputs
from penstock_gateway.http.errors import clip
from penstock_gateway.request.fields import GenerateFields, RepetitionDetection
from penstock_gateway.request.structure import ResponseFormat, StructuredFields

if TYPE_CHECKING:
    from penstock_gateway.models.backend import EngineInfo

FORMATS = ("text", "json_object", "json_schema", "structural_tag")
NO_LIMIT = -1
"""What max_tokens is for as many as there is room for, as in LM Studio and llama-server."""
NO_BUDGET = -1
"""What thinking_token_budget is for thoughts of any length, as in vLLM."""
NARROWEST = 1e-9
"""The top_p that 0 stands for: nothing but the likeliest token is left. OpenAI's range begins with
0, and no nucleus is empty."""
OLDER_FORMATS = ("json", "regex")
"""Text Generation Inference's; what is said to be allowed leaves them out."""
GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "structural_tag": "structural_tag",
    "grammar": "grammar",
    "json_schema": "json",
}
"""vLLM's older fields and llama.cpp's, and what they are called in structured_outputs."""
KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


_STRUCTURES = attrgetter("response_format", PARAM, *GUIDED)
_UNSTRUCTURED = (None,) * (2 + len(GUIDED))


def structure_of(request: GenerateFields, max_bytes: int) -> tuple[str, StructuredOutputs] | None:
    """The field that says what the output must look like, and what it says; None where none does.

    max_bytes: that the engine core takes; 0: it takes none, and says so itself.  Raises
    InvalidRequest, also where two fields differ, and for more than that before it is read.
    """
    if _STRUCTURES(request) == _UNSTRUCTURED:
        return None
    found: tuple[str, dict[str, Any]] | None = None
    for field, wanted in _structures(request):
        # The same twice comes from clients that speak to older and newer versions of vLLM.
        if found is not None and _alike(found[1], wanted):
            continue
        if found is not None:
            raise InvalidRequest(
                Field(found[0]),
                " and ",
                Field(field),
                " both constrain the output: set only one of them",
                param=field,
            )
        found = field, wanted
    if found is None:
        return None
    field, wanted = found
    if max_bytes:
        _check_size(field, wanted, max_bytes)
    try:
        return field, StructuredOutputs(**wanted)
    except InvalidRequest as error:
        raise blame(error, field) from None


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether both say the same: to Python 1 is true, and the order of properties doesn't matter,
    but the answer has it."""
    return msgspec.json.encode(one) == msgspec.json.encode(other)


def structure_field(request: GenerateFields) -> str | None:
    """The field alone, of a request that `structure_of` has found no fault with."""
    if _STRUCTURES(request) == _UNSTRUCTURED:
        return None
    return next((field for field, _ in _structures(request)), None)


def blame(error: InvalidRequest, field: str | None) -> InvalidRequest:
    """The error, naming the field that the client has used for its structure."""
    if error.param != PARAM or field in (None, PARAM):
        return error
    message = error.message.removeprefix(f"{PARAM}: ")
    return InvalidRequest(f"{field}: {message}", param=field, code=error.code)


def _structures(request: GenerateFields) -> Iterator[tuple[str, dict[str, Any]]]:
    if request.response_format is not None:
        wanted = _from_format(request.response_format)
        if wanted is not None:
            yield "response_format", wanted
    if request.structured_outputs is not None:
        yield PARAM, _from_fields(request.structured_outputs)
    for field, name in GUIDED.items():
        value = getattr(request, field)
        # llama.cpp's clients send an empty grammar for none.
        if value is not None and value != [] and (field, value) != ("grammar", ""):
            yield field, {name: value}


def _check_size(field: str, wanted: dict[str, Any], most: int) -> None:
    """Raises InvalidRequest for what is far too long, before it is searched and written again. What
    is less is counted exactly where it is sent. most: bytes."""
    for value in wanted.values():
        try:
            size = len(value) if isinstance(value, str) else len(msgspec.json.encode(value))
        except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
            continue  # Which is said where it is read.
        if size > most:
            raise InvalidRequest(
                f"{field}: it has {size} bytes or more; at most {most} are allowed", param=field
            )


_OF_TYPE = {
    "json_object": ("schema", "value"),
    "json": ("value",),
    "regex": ("value",),
    "json_schema": ("json_schema", "schema", "value"),
    "structural_tag": ("structures", "triggers", "format"),
}
"""Fields of a response_format that its type has; others are refused."""


def _from_format(wanted: ResponseFormat) -> dict[str, Any] | None:
    if wanted.type not in (*FORMATS, *OLDER_FORMATS):
        _refuse("response_format.type", f"is {clip(wanted.type)}; allowed: {', '.join(FORMATS)}")
    given = [name for name in wanted.__struct_fields__ if getattr(wanted, name) is not None]
    used = _OF_TYPE.get(wanted.type, ())
    for name in given:
        if name != "type" and name not in used:
            _refuse(f"response_format.{name}", f"is not allowed with type {wanted.type}")
    if wanted.type == "structural_tag":
        return {"structural_tag": {name: getattr(wanted, name) for name in used if name in given}}
    if wanted.type in OLDER_FORMATS and wanted.value is None:
        _refuse("response_format.value", "is missing")
    if wanted.type == "regex":
        if not isinstance(wanted.value, str):
            _refuse("response_format.value", "must be a string, a regular expression")
        return {"regex": wanted.value}
    schemas = [name for name in given if name in used]
    if len(schemas) > 1:
        _refuse(f"response_format.{schemas[1]}", f"is given beside {schemas[0]}; allowed: one")
    if isinstance(wanted.value, str):
        _refuse("response_format.value", "must be a JSON schema, not a string")
    if wanted.type == "json_schema" or schemas:
        return {"json": _schema(wanted)}
    return {"json_object": True} if wanted.type == "json_object" else None


def _schema(wanted: ResponseFormat) -> dict[str, Any] | str:
    bare = wanted.value if wanted.schema is None else wanted.schema
    if bare is None and wanted.json_schema is None:
        _refuse("response_format.json_schema", "is missing")
    schema = bare if wanted.json_schema is None else wanted.json_schema.schema
    if schema is None:
        _refuse("response_format.json_schema.schema", "is missing")
    if isinstance(schema, bool):
        return "true" if schema else "false"
    return schema


def _from_fields(wanted: StructuredFields) -> dict[str, Any]:
    for name in wanted.__struct_fields__:
        value = getattr(wanted, name)
        if name not in KINDS and value not in (None, False):
            raise InvalidRequest(
                f"structured_outputs.{name} is {clip(value)}, which is not supported; "
                "allowed: false or null",
                param=f"structured_outputs.{name}",
                code="unsupported_value",
            )
    fields = {name: getattr(wanted, name) for name in KINDS}
    return {name: value for name, value in fields.items() if value is not None}


def _refuse(field: str, complaint: str) -> NoReturn:
    raise InvalidRequest(f"{field} {complaint}", param=field)


_OF_CHECKPOINTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Fields for which a checkpoint may say what holds where a request is silent."""
_AS_SAID = (
    *_OF_CHECKPOINTS,
    *("n", "presence_penalty", "frequency_penalty", "allowed_token_ids", "stop", "min_tokens"),
    *("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"),
)
"""Fields that SamplingParams has as a request has them."""


def sampling_params(
    request: GenerateFields,
    welcome: Welcome,
    *,
    max_tokens: int,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """What the request asks for; where it is silent, what the checkpoint's own generation config
    says, else OpenAI's defaults. Raises InvalidRequest for a value out of its range."""
    generation = welcome.generation
    vocabulary = welcome.limits.vocab_size
    for field in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
        if ids := getattr(request, field):
            check_ids(field, ids, vocabulary)
    wanted = structure_of(request, welcome.limits.max_grammar_bytes)
    said: dict[str, Any] = {}
    for source, fields in ((generation, _OF_CHECKPOINTS), (request, _AS_SAID)):
        for field in fields:
            value = getattr(source, field)
            if value is not None:
                said[field] = value
    top_p = said.get("top_p", 1.0)
    if not 0 <= top_p <= 1:
        raise InvalidRequest(f"top_p must be a number in [0, 1], not {top_p}", param="top_p")
    said["top_p"] = top_p or NARROWEST
    budget, bias = request.thinking_token_budget, request.logit_bias
    detection = request.repetition_detection
    return SamplingParams(
        **said,
        logit_bias=_bias(bias, vocabulary) if bias else None,
        bad_words=request.bad_words or None,
        seed=None if request.seed is None else _seed(request.seed),
        stop_token_ids=request.stop_token_ids or None,
        max_tokens=max_tokens,
        repetition_detection=None if detection is None else _detection(detection),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        structured_outputs=None if wanted is None else wanted[1],
        logprob_token_ids=request.logprob_token_ids or None,
        thinking_token_budget=None if budget == NO_BUDGET else budget,
    )


def truncated(
    prompt_token_ids: list[int], request: GenerateFields, wanted: int | None, limit: int
) -> list[int]:
    """The prompt's end, or its beginning where truncation_side is right, as long as
    truncate_prompt_tokens says; all of it where it is silent.

    wanted: max_tokens, for which -1 leaves room.  limit: the context, in tokens.
    """
    keep = request.truncate_prompt_tokens
    if keep is None:
        return prompt_token_ids
    if keep != -1 and not 1 <= keep <= limit:
        raise InvalidRequest(
            f"truncate_prompt_tokens must be -1 or a whole number in [1, {limit}], not {keep}",
            param="truncate_prompt_tokens",
        )
    if keep == -1:
        keep = max(1, limit - max(1, wanted or 0))
    if request.truncation_side == "right":
        return prompt_token_ids[:keep]
    return prompt_token_ids[-keep:]


def room_for_output(
    prompt_tokens: int,
    wanted: int | None,
    default: int | None,
    limits: Limits,
    *,
    field: str,
    source: str,
    sequences: int = 1,
    many: str = "n",
    oversized: OversizedMaxTokens = "error",
) -> int:
    """max_tokens of a prompt.

    wanted: what the request says, None if it is silent; then `default`, or less where the context
    (prompt and output), or what one request may have, leaves less; None, or NO_LIMIT wanted: all
    that they leave.
    sequences: of each prompt.  oversized: whether more than the room is an error.  Raises
    InvalidRequest when the prompt leaves no room, or less than was asked for.  field, source, many:
    the request's names for max_tokens, prompt and sequences.
    """
    limit = limits.max_model_len
    room = limit - prompt_tokens
    if room < 1:
        raise InvalidRequest(
            f"the prompt has {prompt_tokens} tokens; this model's context is {limit} tokens, "
            "output included",
            param=source,
            code="context_length_exceeded",
        )
    if wanted == NO_LIMIT:
        wanted = default = None
    if wanted is not None and wanted < 0:
        raise InvalidRequest(
            f"{field} must be -1 or a whole number in [0, {limit}], not {wanted}", param=field
        )
    if wanted is None:
        most = max_output(prompt_tokens, None, sequences, limits, many=many)
        return most if default is None else min(default, most)
    if wanted > room and oversized == "reduce":
        wanted = room
    elif wanted > room:
        raise InvalidRequest(
            f"the prompt has {prompt_tokens} tokens and ",
            Field(field),
            f" is {wanted}: together {prompt_tokens + wanted}, more than this model's context of "
            f"{limit} tokens; at most {room} are left for the output (with the server's setting "
            "--oversized-max-tokens reduce, it would be that many)",
            param=field,
            code="context_length_exceeded",
        )
    return max_output(prompt_tokens, wanted, sequences, limits, many=many)


def fitted(
    request: GenerateFields,
    engine: EngineInfo,
    prompt_token_ids: list[int],
    wanted: int | None,
    *,
    field: str,
    source: str,
    logprobs: int | None,
) -> tuple[list[int], SamplingParams]:
    """The only prompt, cut if that was asked for, and its parameters. wanted, field, source: as in
    `room_for_output`.  logprobs: as in SamplingParams.  Raises InvalidRequest."""
    limits = engine.welcome.limits
    if request.truncate_prompt_tokens is not None:
        prompt_token_ids = truncated(prompt_token_ids, request, wanted, limits.max_model_len)
    sequences, many = sequences_of(request)
    max_tokens = room_for_output(
        len(prompt_token_ids),
        wanted,
        engine.welcome.generation.max_new_tokens,
        limits,
        field=field,
        source=source,
        sequences=sequences,
        many=many,
        oversized=engine.config.oversized_max_tokens,
    )
    params = sampling_params(
        request,
        engine.welcome,
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=request.prompt_logprobs,
    )
    return prompt_token_ids, params


def sequences_of(request: GenerateFields) -> tuple[int, str]:
    """How many sequences each prompt has (of a beam search: at once), and the field that says
    so."""
    if request.best_of is not None:
        return request.best_of, "best_of"
    return 1 if request.n is None else request.n, "n"


def check_ids(field: str, ids: list[int], vocabulary: int) -> None:
    """Raises InvalidRequest that names the first id outside of the vocabulary."""
    if min(ids) >= 0 and max(ids) < vocabulary:
        return
    bad = next(token for token in ids if not 0 <= token < vocabulary)
    raise InvalidRequest(
        f"{field} contains token id {bad}; this model's ids are 0 to {vocabulary - 1}", param=field
    )


def _bias(bias: dict[str, float], vocabulary: int) -> dict[int, float]:
    """Keyed by token ids as numbers."""
    for key in bias:
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocabulary):
            raise InvalidRequest(
                f"logit_bias has the key {clip(key)}; keys are token ids, 0 to {vocabulary - 1}, "
                "written as strings",
                param="logit_bias",
            )
    return {int(key): value for key, value in bias.items()}


def _detection(wanted: RepetitionDetection) -> RepetitionDetectionParams:
    return RepetitionDetectionParams(
        max_pattern_size=wanted.max_pattern_size,
        min_count=wanted.min_count,
        min_pattern_size=wanted.min_pattern_size or 0,
    )


def _seed(seed: int) -> int:
    """Any 64-bit integer is a seed; negative ones are taken modulo 2**64."""
    if not -(2**63) <= seed <= MAX_SEED:
        raise InvalidRequest(
            f"seed must be a whole number in [{-(2**63)}, {MAX_SEED}], not {seed}", param="seed"
        )
    return seed % 2**64
