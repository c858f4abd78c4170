"""SamplingParams: how a request's tokens are chosen and when they end. Names as in vLLM."""

from __future__ import annotations

import math

import msgspec

from penstock.errors import InvalidRequest
from penstock.structured_outputs import StructuredOutputs

MAX_N = 128
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_LOGPROBS = 20
MAX_SEED = 2**64 - 1


class SamplingParams(msgspec.Struct, kw_only=True, frozen=True):
    """One request's sampling. Ranges are checked when it is made; InvalidRequest names the field.

    n: sequences to generate for the prompt.
    temperature: 0 is greedy.
    top_p, top_k (0 or -1: off), min_p: cut the distribution, in the order temperature, top_k,
        top_p, min_p.
    seed: draws are a pure function of (seed, sequence, token index); None: one is drawn when the
        request is submitted.
    stop: strings that end the text; not part of it.
    max_tokens: None means as many as the context allows.
    logprobs: None for none, else how many top alternatives to report for each token.
    structured_outputs: what the text must look like; see StructuredOutputs.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputs | None = None

    def __post_init__(self) -> None:
        _whole("n", self.n, 1, MAX_N)
        _number("temperature", self.temperature, 0.0, 100.0)
        _number("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _whole("top_k", self.top_k, -1, 2**31 - 1)
        _number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _whole("seed", self.seed, 0, MAX_SEED)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 0, 2**31 - 1)
        _whole("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens is {self.min_tokens}, more than max_tokens, {self.max_tokens}",
                param="min_tokens",
            )
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        _flag("ignore_eos", self.ignore_eos)
        _flag("skip_special_tokens", self.skip_special_tokens)
        _check_stop(self.stop_strings)
        _check_stop_ids(self.stop_token_ids)
        _check_structured(self.structured_outputs, self.ignore_eos)

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


def _whole(name: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidRequest(
            f"{name} must be a whole number in [{low}, {high}], not {value!r}", param=name
        )


def _flag(name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false, not {value!r}", param=name)


def _check_stop(stop: tuple[str, ...]) -> None:
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidRequest(
            f"stop holds {len(stop)} strings; at most {MAX_STOP_STRINGS} are allowed", param="stop"
        )
    for text in stop:
        if not isinstance(text, str) or not text or len(text) > MAX_STOP_LENGTH:
            raise InvalidRequest(
                f"each stop string must have 1 to {MAX_STOP_LENGTH} characters", param="stop"
            )


def _check_stop_ids(ids: list[int] | None) -> None:
    if ids is None:
        return
    if not isinstance(ids, (list, tuple)) or len(ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(
            f"stop_token_ids must be a list of at most {MAX_STOP_TOKEN_IDS} token ids",
            param="stop_token_ids",
        )
    for token in ids:
        _whole("stop_token_ids", token, 0, 2**31 - 1)


def _check_structured(wanted: StructuredOutputs | None, ignore_eos: bool) -> None:
    if wanted is None:
        return
    if not isinstance(wanted, StructuredOutputs):
        raise InvalidRequest(
            f"structured_outputs must be StructuredOutputs(...), not {type(wanted).__name__}",
            param="structured_outputs",
        )
    if ignore_eos:
        raise InvalidRequest(
            "ignore_eos can't be combined with structured_outputs: they end with the EOS token",
            param="ignore_eos",
        )
