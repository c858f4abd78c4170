"""Turns request fields into SamplingParams: defaults, structured outputs, and the tokens left in
the context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.client.request_bounds import max_output
from penstock.config.settings import OversizedMaxTokens
from penstock.errors import Field, InvalidRequest
from penstock.protocol.to_frontend import Limits, Welcome
from penstock.request.sampling_params import MAX_SEED, RepetitionDetectionParams, SamplingParams
from penstock_gateway.http.errors import clip
from penstock_gateway.request.answer_form import structure_of
from penstock_gateway.request.fields import GenerateFields, RepetitionDetection

if TYPE_CHECKING:
    from penstock_gateway.models.backend import EngineInfo

NO_LIMIT = -1
"""What max_tokens is for as many as there is room for, as in LM Studio and llama-server."""
NO_BUDGET = -1
"""What thinking_token_budget is for thoughts of any length, as in vLLM."""
NARROWEST = 1e-9
"""The top_p that 0 stands for: nothing but the likeliest token is left. OpenAI's range begins with
0, and no nucleus is empty."""
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
