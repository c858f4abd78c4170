"""Checks a Submit's sampling again: the engine trusts no front end to have done it."""

from __future__ import annotations

from penstock.config.settings import LimitSettings
from penstock.errors import InvalidRequest
from penstock.protocol.common import LogitsAdjustments, SpeechRules, TokenSampling
from penstock.request.sampling_params import (
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_LOGPROBS,
    MAX_SEED,
)
from penstock_engine.handlers.ranges import MAX_COUNT, check_ids, check_number, check_whole

MAX_NUM_LOGPROBS = 256
"""Log-probabilities of a token that a front end may ask for itself: a beam search compares more
than a client may see."""

MAX_SUPPRESSED = 1024
"""Ids of each list of a transcript's rules; Whisper's have some 90."""

MAX_BAD_WORD_TOKENS = 4 * MAX_BAD_WORD_LENGTH + 4
"""A character may be four bytes, and a byte a token; a word begins with a space or without."""


def check_sampling(sampling: TokenSampling, vocab_size: int, limits: LimitSettings) -> None:
    """Raises InvalidRequest, which says what is wrong and what is allowed."""
    check_number("temperature", sampling.temperature, 0.0, 100.0)
    check_number("top_p", sampling.top_p, 0.0, 1.0)
    if sampling.top_p == 0.0:
        raise InvalidRequest("top_p must be above 0", param="top_p")
    check_number("min_p", sampling.min_p, 0.0, 1.0)
    check_whole("top_k", sampling.top_k, 0, MAX_COUNT)
    check_whole("seed", sampling.seed, 0, MAX_SEED)
    if sampling.logprobs is not None:
        check_whole("logprobs", sampling.logprobs, 0, MAX_NUM_LOGPROBS)
    if sampling.prompt_logprobs is not None:
        check_whole("prompt_logprobs", sampling.prompt_logprobs, 0, MAX_LOGPROBS)
    if sampling.adjustments is not None:
        _check_adjustments(sampling.adjustments, vocab_size, limits)


def _check_adjustments(wanted: LogitsAdjustments, vocab_size: int, limits: LimitSettings) -> None:
    check_number("presence_penalty", wanted.presence, -2.0, 2.0)
    check_number("frequency_penalty", wanted.frequency, -2.0, 2.0)
    check_number("repetition_penalty", wanted.repetition, 0.0, 100.0)
    if wanted.repetition == 0.0:
        raise InvalidRequest("repetition_penalty must be above 0", param="repetition_penalty")
    _check_count("logit_bias", len(wanted.bias), limits.max_logit_bias)
    check_ids("logit_bias", wanted.bias, vocab_size)
    for value in wanted.bias.values():
        check_number("logit_bias", value, -100.0, 100.0)
    if wanted.allowed is not None:
        if not wanted.allowed:
            raise InvalidRequest(
                "allowed_token_ids must have at least one id", param="allowed_token_ids"
            )
        _check_count("allowed_token_ids", len(wanted.allowed), limits.max_allowed_token_ids)
        check_ids("allowed_token_ids", wanted.allowed, vocab_size)
    _check_bad_words(wanted.bad_words, vocab_size)
    together = sum(map(len, wanted.bad_words))
    if together > limits.max_bad_words_tokens:
        raise InvalidRequest(
            f"bad_words have {together} token ids in total, with and without a leading space;"
            f" {limits.max_bad_words_tokens} are allowed (--max-bad-words-tokens)",
            param="bad_words",
        )
    if wanted.speech is not None:
        _check_speech(wanted.speech, vocab_size)


def _check_speech(rules: SpeechRules, vocab_size: int) -> None:
    for name, ids in (
        ("suppress_tokens", rules.suppressed),
        ("begin_suppress_tokens", rules.suppressed_first),
    ):
        _check_count(name, len(ids), MAX_SUPPRESSED)
        check_ids(name, ids, vocab_size)
    times = rules.timestamps
    if times is not None:
        check_ids("timestamps", (times.first, times.text_end, times.none), vocab_size)
        # Some id is no timestamp: samplers compare these with the others.
        check_whole("timestamps.first", times.first, 1, vocab_size - 1)
        check_whole("timestamps.text_end", times.text_end, 0, times.first)
        if times.max_initial is not None:
            check_whole("max_initial_timestamp_index", times.max_initial, 0, vocab_size)


def _check_bad_words(words: tuple[tuple[int, ...], ...], vocab_size: int) -> None:
    # Each appears twice: as it is, and after a space.
    _check_count("bad_words", len(words), 2 * MAX_BAD_WORDS)
    for word in words:
        if not 1 <= len(word) <= MAX_BAD_WORD_TOKENS:
            raise InvalidRequest(
                f"one of bad_words has {len(word)} tokens; 1 to {MAX_BAD_WORD_TOKENS} are allowed",
                param="bad_words",
            )
        check_ids("bad_words", word, vocab_size)


def _check_count(name: str, count: int, most: int) -> None:
    if count > most:
        raise InvalidRequest(f"{name} has {count} entries; at most {most} are allowed", param=name)
