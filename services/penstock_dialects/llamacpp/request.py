"""What bodies of /completion and /infill share, in llama.cpp's words, and the same in the words of
the other endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from penstock.errors import InvalidRequest
from penstock.request.sampling_params import SamplingParams
from penstock_gateway.completions.endpoint import for_rooms
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.request.dialect import Dialect, NamedField, named, same
from penstock_gateway.request.fields import (
    Flag,
    GenerateFields,
    Number,
    RequestFields,
    UnsupportedField,
    Whole,
)
from penstock_gateway.request.sampling import room_for_output, sampling_params

RANDOM_SEED = -1
"""The seed that stands for none."""
MOST_FIELDS = 128
LONGEST_FIELD = 128
"""Entries of response_fields, and characters of each: the reply has some fifty."""


class LlamaFields(RequestFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """n_predict: tokens of an answer; below 0, or absent: as many as there is room for; 0: the
    prompt is only computed, so that the next one is answered sooner.  n_cmpl: answers; more than
    one make the reply a list.  n_indent: an answer ends before a line that has fewer spaces or tabs
    in front.  seed: -1 is none.  return_tokens: the reply has the answer's token ids, as the pieces
    of a stream always do.  response_fields: what alone the reply has; `a/b` is the field b of a."""

    # These work.
    n_predict: Whole = None
    n_cmpl: Whole = None
    n_indent: Whole = None
    temperature: Number = None
    top_k: Whole = None
    top_p: Number = None
    min_p: Number = None
    seed: Whole = None
    stop: str | list[str] | None = None
    repeat_penalty: Number = None
    presence_penalty: Number = None
    frequency_penalty: Number = None
    ignore_eos: Flag = None
    return_tokens: Flag = None
    response_fields: list[str] | None = None

    # Without effect: an answer depends neither on time nor on what was kept.
    t_max_prompt_ms: Number = None
    t_max_predict_ms: Number = None
    samplers: list[str] | str | None = None
    cache_prompt: Flag = None
    id_slot: Whole = None
    n_keep: Whole = None
    n_discard: Whole = None
    repeat_last_n: Whole = None
    min_keep: Whole = None
    timings_per_token: Flag = None
    return_progress: Flag = None

    # Only at their neutral value.
    typical_p: Number = None
    top_n_sigma: Number = None
    dynatemp_range: Number = None
    dynatemp_exponent: Number = None
    xtc_probability: Number = None
    xtc_threshold: Number = None
    dry_multiplier: Number = None
    dry_base: Number = None
    dry_allowed_length: Whole = None
    dry_penalty_last_n: Whole = None
    dry_sequence_breakers: list[str] | None = None
    mirostat: Whole = None
    mirostat_tau: Number = None
    mirostat_eta: Number = None
    lora: list[Any] | None = None


LLAMA = Dialect(
    NamedField("n_cmpl", "n"),
    NamedField("temperature", "temperature", least=0.0),
    NamedField("top_k", "top_k", least=0),
    NamedField("seed", "seed", neutral=(RANDOM_SEED,)),
    NamedField("repeat_penalty", "repetition_penalty"),
    *same("top_p", "min_p", "stop", "presence_penalty", "frequency_penalty", "ignore_eos"),
    *named("n_predict", "max_tokens"),
    *named("n_indent", "min_indentation"),
    *named("n_probs", "logprobs"),
    unsupported=(
        UnsupportedField("typical_p", (1.0,)),
        UnsupportedField("top_n_sigma", (-1.0, 0.0)),
        UnsupportedField("dynatemp_range", (0.0,)),
        UnsupportedField("xtc_probability", (0.0,)),
        UnsupportedField("dry_multiplier", (0.0,)),
        UnsupportedField("mirostat", (0,)),
        UnsupportedField("lora", ([],)),
    ),
)
"""llama.cpp's names. unsupported: samplers that aren't there; where they do nothing, their further
fields have no effect."""

FieldPath = tuple[str, ...]
"""Where a field of a reply is: its name, and in front of it what it is a part of."""


def response_fields(request: LlamaFields) -> list[FieldPath] | None:
    """The fields that alone the reply has, each once; None: it has all. Raises InvalidRequest."""
    names = request.response_fields
    if not names:
        return None
    if len(names) > MOST_FIELDS:
        raise InvalidRequest(
            f"response_fields has {len(names)} entries; at most {MOST_FIELDS} are allowed",
            param="response_fields",
        )
    longest = max(map(len, names))
    if longest > LONGEST_FIELD:
        raise InvalidRequest(
            f"response_fields has a name of {longest} characters; at most {LONGEST_FIELD} are"
            " allowed",
            param="response_fields",
        )
    return [tuple(name.split("/")) for name in dict.fromkeys(names)]


Asked = TypeVar("Asked", bound=GenerateFields)


def parameters(
    request: LlamaFields,
    asked: GenerateFields,
    engine: EngineInfo,
    prompts: Iterable[Sequence[int]],
    *,
    source: str,
    logprobs: int | None = None,
) -> list[SamplingParams]:
    """Sampling parameters of each prompt, which are token ids. asked: the request in other
    endpoints' words.  source: the field of the prompts.  logprobs: as in SamplingParams.  Raises
    InvalidRequest, in llama.cpp's words."""
    welcome, wanted = engine.welcome, request.n_predict

    def made(room: int) -> SamplingParams:
        params = sampling_params(asked, welcome, max_tokens=room, logprobs=logprobs)
        return msgspec.structs.replace(params, min_indentation=max(0, request.n_indent or 0))

    try:
        rooms = [
            room_for_output(
                len(ids),
                None if wanted is None or wanted < 0 else max(1, wanted),
                welcome.generation.max_new_tokens,
                welcome.limits,
                field="n_predict",
                source=source,
                sequences=asked.n or 1,
                many="n_cmpl",
                oversized="reduce",
            )
            for ids in prompts
        ]
        return for_rooms(rooms, made)
    except InvalidRequest as error:
        raise LLAMA.own_words(error) from None
