"""SamplingParams: how a request's tokens are chosen and when they end. Names as in vLLM."""

from __future__ import annotations

import copy
import enum
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from penstock.errors import Field, InvalidRequest
from penstock.request.structured_outputs import StructuredOutputs

StructuredOutputsParams = StructuredOutputs
"""vLLM's name for it, where vLLM has it."""

MAX_N = 128
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_LOGPROBS = 20
MAX_SEED = 2**64 - 1
MAX_LOGIT_BIAS = 1024
MAX_ALLOWED_TOKEN_IDS = 2**18
MAX_BAD_WORDS = 256
MAX_BAD_WORD_LENGTH = 256
MAX_PATTERN = 256
"""Tokens of a pattern whose repetition is looked for with each token."""
MOST = 2**31 - 1
"""The largest number of tokens or ids that a field may say."""
MAX_REPETITION = 4096
"""Tokens of all its repetitions together."""


class RepetitionDetectionParams(msgspec.Struct, kw_only=True, frozen=True):
    """When a sequence ends as a loop, with the finish reason `repetition`: its last tokens are one
    pattern, min_count times in a row.

    max_pattern_size, min_pattern_size: tokens of the pattern; 0 for min_pattern_size is 1.  Checked
    when it is made; InvalidRequest says what is wrong.
    """

    max_pattern_size: int
    min_count: int
    min_pattern_size: int = 0

    def __post_init__(self) -> None:
        where = "repetition_detection"
        check_whole(f"{where}.max_pattern_size", self.max_pattern_size, 1, MAX_PATTERN)
        check_whole(f"{where}.min_pattern_size", self.min_pattern_size, 0, self.max_pattern_size)
        most = MAX_REPETITION // self.max_pattern_size
        check_whole(f"{where}.min_count", self.min_count, 2, most)


class RequestOutputKind(enum.Enum):
    """What each RequestOutput of a library's stream holds: all so far; only what is new; all, and
    only once, at the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams(msgspec.Struct, kw_only=True):
    """One request's sampling. Ranges are checked when it is made and when a field is set;
    InvalidRequest names the field.  Once a request is submitted, changes don't reach it any more.

    n: sequences to generate for the prompt.
    temperature: 0 is greedy.
    top_p, top_k (0 or -1: off), min_p: cut the distribution, in the order temperature, top_k,
        top_p, min_p.
    seed: draws are a pure function of (seed, sequence, token index); None: one is drawn when the
        request is submitted.
    presence_penalty, frequency_penalty: taken off the logits of tokens that the output holds, once,
        and as often as it holds them.
    repetition_penalty: divides the positive logits, and multiplies the negative ones, of tokens
        that the prompt or the output holds (Keskar et al. 2019, arXiv:1909.05858).
    logit_bias: what is added to the logits of token ids.
    allowed_token_ids: no other can be chosen.
    bad_words: texts that the output may not hold, as the sequences of tokens that they encode to.
    stop: strings that end the text; not part of it, unless include_stop_str_in_output.
    min_indentation: ends the text before its first line that begins with fewer spaces and tabs, but
        for the one that it begins in; 0: nothing does.
    repetition_detection: ends a sequence that repeats itself; None: nothing does.
    thinking_token_budget: most tokens between the marks of a model's thoughts, those in the prompt
        included; then the mark that closes them is written, whatever the model would write. -1 and
        None: thoughts may fill the output.
    max_tokens: None means as many as the context allows.
    logprobs: None for none, else how many top alternatives to report for each token.
    logprob_token_ids: token ids whose log-probabilities are reported in place of the top
        alternatives, in addition to the token itself.
    prompt_logprobs: the same as logprobs for each token of the prompt.
    structured_outputs: what the text must look like; see StructuredOutputs.
    output_kind: what a stream of AsyncLLM yields.

    The logits of a token are cut to what is allowed, then biased, then penalised, then divided by
    the temperature.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    repetition_detection: RepetitionDetectionParams | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputs | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    min_indentation: int = 0
    thinking_token_budget: int | None = None
    logprob_token_ids: list[int] | None = None

    def __post_init__(self) -> None:
        for name, default, check in _CHECKS:
            value = getattr(self, name)
            if value is not default:
                check(name, value)
        self._check_lengths()
        if self.ignore_eos and self.structured_outputs is not None:
            raise InvalidRequest(
                "ignore_eos can't be combined with ",
                Field("structured_outputs"),
                ": they end with the EOS token",
                param="ignore_eos",
            )

    def _check_lengths(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens is {self.min_tokens}, more than ",
                Field("max_tokens"),
                f", {self.max_tokens}",
                param="min_tokens",
            )

    def __setattr__(self, name: str, value: Any) -> None:
        old = getattr(self, name)
        super().__setattr__(name, value)
        try:
            self.__post_init__()
        except InvalidRequest:
            super().__setattr__(name, old)
            raise

    def clone(self) -> SamplingParams:
        """A copy that can be changed for itself."""
        return msgspec.structs.replace(self)

    def with_max_tokens(self, most: int | None) -> SamplingParams:
        """A copy with other max_tokens. It shares all the rest, however large, and nothing else is
        checked again. Raises InvalidRequest."""
        other = copy.copy(self)
        msgspec.structs.force_setattr(other, "max_tokens", most)
        _limit("max_tokens", most)
        other._check_lengths()
        return other

    @property
    def num_logprobs(self) -> int | None:
        """Returns the number of alternatives that are reported for each token, in addition to
        listed ids; None: no log-probabilities are."""
        return 0 if self.logprob_token_ids else self.logprobs

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple, however it was given."""
        if self.stop is None:
            return ()
        if isinstance(self.stop, str):
            return (self.stop,)
        return tuple(self.stop)


def _number(name: str, value: float, low: float, high: float, low_open: bool = False) -> None:
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not ok or not (low < value if low_open else low <= value) or value > high:
        opening = "(" if low_open else "["
        raise InvalidRequest(
            f"{name} must be a number in {opening}{low:g}, {high:g}], not {value!r}", param=name
        )


def check_whole(name: str, value: int, low: int, high: int) -> None:
    """Raises InvalidRequest for what is no whole number from `low` to `high`."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidRequest(
            f"{name} must be a whole number in [{low}, {high}], not {value!r}", param=name
        )


def _flag(name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false, not {value!r}", param=name)


def _check_stop(name: str, given: str | Sequence[str]) -> None:
    stop = (given,) if isinstance(given, str) else tuple(given)
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidRequest(
            f"{name} holds {len(stop)} strings; at most {MAX_STOP_STRINGS} are allowed", param=name
        )
    for text in stop:
        if not isinstance(text, str) or not text or len(text) > MAX_STOP_LENGTH:
            raise InvalidRequest(
                "each ",
                Field(name),
                f" string must have 1 to {MAX_STOP_LENGTH} characters",
                param=name,
            )


def _check_stop_ids(name: str, ids: list[int]) -> None:
    if not isinstance(ids, (list, tuple)) or len(ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(
            f"{name} must be a list of at most {MAX_STOP_TOKEN_IDS} token ids",
            param=name,
        )
    for token in ids:
        check_whole(name, token, 0, 2**31 - 1)


def _check_logprob_ids(name: str, ids: list[int]) -> None:
    if not isinstance(ids, (list, tuple)) or len(ids) > MAX_LOGPROBS:
        raise InvalidRequest(
            f"{name} must be a list of at most {MAX_LOGPROBS} token ids",
            param=name,
        )
    for token in ids:
        check_whole(name, token, 0, 2**31 - 1)


def _check_bias(name: str, bias: dict[int, float]) -> None:
    if not isinstance(bias, dict) or len(bias) > MAX_LOGIT_BIAS:
        raise InvalidRequest(
            f"{name} must map at most {MAX_LOGIT_BIAS} token ids to numbers", param=name
        )
    for token, value in bias.items():
        check_whole(name, token, 0, 2**31 - 1)
        _number(name, value, -100.0, 100.0)


def _check_allowed(name: str, ids: list[int]) -> None:
    if not isinstance(ids, (list, tuple)) or not 1 <= len(ids) <= MAX_ALLOWED_TOKEN_IDS:
        raise InvalidRequest(
            f"{name} must be a list of 1 to {MAX_ALLOWED_TOKEN_IDS} token ids",
            param=name,
        )
    for token in ids:
        check_whole(name, token, 0, 2**31 - 1)


def _check_bad_words(name: str, words: list[str]) -> None:
    if not isinstance(words, (list, tuple)) or len(words) > MAX_BAD_WORDS:
        raise InvalidRequest(
            f"{name} must be a list of at most {MAX_BAD_WORDS} strings", param=name
        )
    for word in words:
        if not isinstance(word, str) or not 1 <= len(word) <= MAX_BAD_WORD_LENGTH:
            raise InvalidRequest(
                "each of ",
                Field(name),
                f" must have 1 to {MAX_BAD_WORD_LENGTH} characters",
                param=name,
            )


def _check_structured(name: str, wanted: StructuredOutputs) -> None:
    if not isinstance(wanted, StructuredOutputs):
        raise InvalidRequest(
            f"{name} must be StructuredOutputs(...), not {type(wanted).__name__}", param=name
        )


def _check_detection(name: str, wanted: RepetitionDetectionParams) -> None:
    if not isinstance(wanted, RepetitionDetectionParams):
        raise InvalidRequest(
            f"{name} must be RepetitionDetectionParams(...), not {type(wanted).__name__}",
            param=name,
        )


def _check_kind(name: str, kind: RequestOutputKind) -> None:
    if not isinstance(kind, RequestOutputKind):
        raise InvalidRequest(f"{name} must be a RequestOutputKind, not {kind!r}", param=name)


def _in(low: float, high: float, *, low_open: bool = False) -> Callable[[str, Any], None]:
    return partial(_number, low=low, high=high, low_open=low_open)


def _within(low: int, high: int) -> Callable[[str, Any], None]:
    return partial(check_whole, low=low, high=high)


def _limit(name: str, value: int | None) -> None:
    if value is not None:
        check_whole(name, value, 0, MOST)


def _with_defaults(
    **checks: Callable[[str, Any], None],
) -> tuple[tuple[str, Any, Callable[[str, Any], None]], ...]:
    defaults = {each.name: each.default for each in msgspec.structs.fields(SamplingParams)}
    return tuple((name, defaults[name], check) for name, check in checks.items())


_CHECKS = _with_defaults(
    n=_within(1, MAX_N),
    temperature=_in(0.0, 100.0),
    top_p=_in(0.0, 1.0, low_open=True),
    top_k=_within(-1, MOST),
    min_p=_in(0.0, 1.0),
    seed=_within(0, MAX_SEED),
    max_tokens=_limit,
    min_tokens=_within(0, MOST),
    min_indentation=_within(0, MOST),
    thinking_token_budget=_within(-1, MOST),
    logprobs=_within(0, MAX_LOGPROBS),
    prompt_logprobs=_within(0, MAX_LOGPROBS),
    logprob_token_ids=_check_logprob_ids,
    presence_penalty=_in(-2.0, 2.0),
    frequency_penalty=_in(-2.0, 2.0),
    repetition_penalty=_in(0.0, 100.0, low_open=True),
    logit_bias=_check_bias,
    allowed_token_ids=_check_allowed,
    bad_words=_check_bad_words,
    include_stop_str_in_output=_flag,
    ignore_eos=_flag,
    skip_special_tokens=_flag,
    stop=_check_stop,
    stop_token_ids=_check_stop_ids,
    structured_outputs=_check_structured,
    repetition_detection=_check_detection,
    output_kind=_check_kind,
)
"""What each field must be where it isn't its default, in the order in which they are checked."""
