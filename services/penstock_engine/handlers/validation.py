"""Checks a Submit again: the engine trusts no front end to have done it."""

from __future__ import annotations

from penstock.config.settings import LimitSettings
from penstock.errors import InvalidRequest
from penstock.protocol.common import (
    GRANT_RANGES,
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    LogitsAdjustments,
    SessionTerms,
    SpeechRules,
    Stopping,
    ThinkingBudget,
    TokenSampling,
)
from penstock.protocol.from_frontend import OpenSequence, Submit
from penstock.request.sampling_params import (
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_PATTERN,
    MAX_REPETITION,
    MAX_SEED,
    MAX_STOP_TOKEN_IDS,
)
from penstock.request.terms import MAX_DEADLINE_MS, MAX_SALT_LENGTH, check_seconds, checked_session
from penstock_engine.handlers.ranges import MAX_COUNT, check_ids, check_number, check_whole
from penstock_engine.request.request import Request

MAX_NAME_LENGTH = 1024
MAX_THINKING_TOKENS = 2**31 - 1
MAX_THINKING_MARKS = 8
"""Marks that end thoughts."""
MAX_THINKING_MARK_TOKENS = 64
MAX_TENANT_LENGTH = 64


def check_submit(
    submit: Submit,
    *,
    vocab_size: int,
    max_len: int,
    room: str,
    most_predicted: int,
    max_grammar_bytes: int,
    limits: LimitSettings,
    max_retention: float,
    suppressed: int = 0,
) -> None:
    """Raises InvalidRequest, which says what is wrong and what is allowed.

    max_len: tokens of the context, prompt and output.  room: what sets that limit, in words.
    most_predicted: tokens of a prediction, whatever the context is at present.  max_retention:
    seconds for which a session may ask to be kept.  suppressed: ids that the model never writes,
    which a beam search has to see beyond.
    """
    if len(submit.name) > MAX_NAME_LENGTH:
        raise InvalidRequest(f"the request's name is longer than {MAX_NAME_LENGTH} characters")
    if len(submit.cache_salt) > MAX_SALT_LENGTH:
        raise InvalidRequest(
            f"cache_salt has {len(submit.cache_salt)} characters; at most {MAX_SALT_LENGTH} are "
            "allowed",
            param="cache_salt",
        )
    _check_session(submit.session, max_retention)
    if submit.deaths < 0:
        raise InvalidRequest(f"deaths must not be negative, it is {submit.deaths}")
    if len(submit.tenant) > MAX_TENANT_LENGTH:
        raise InvalidRequest(f"the tenant is longer than {MAX_TENANT_LENGTH} characters")
    for name, (low, high) in GRANT_RANGES.items() if submit.grant is not None else ():
        value = getattr(submit.grant, name)
        if value is not None:
            check_whole(name, value, low, high)
    check_whole("priority", submit.priority, HIGHEST_PRIORITY, LOWEST_PRIORITY)
    if submit.time_left_ms is not None:
        check_whole("time_left_ms", submit.time_left_ms, 0, MAX_DEADLINE_MS)
    _check_stopping(submit.stopping, vocab_size)
    most = MAX_NUM_LOGPROBS + (suppressed if submit.beams else 0)
    check_sampling(submit.sampling, vocab_size, limits, most)
    if not submit.prompt_token_ids:
        raise InvalidRequest("the prompt is empty; it must have at least one token", param="prompt")
    # Length before content: what is far too long isn't looked through.
    _check_length(submit, max_len, room)
    check_ids("prompt", submit.prompt_token_ids, vocab_size)
    _check_prediction(submit.prediction, most_predicted, vocab_size)
    _check_sequences(submit, vocab_size)
    _check_beams(submit)
    _check_together(submit, max_len, limits.max_request_tokens)
    _check_grammar(submit, max_grammar_bytes)
    check_whole("prompt_delivered", submit.prompt_delivered, 0, len(submit.prompt_token_ids))


def _check_session(session: SessionTerms | None, max_retention: float) -> None:
    if session is None:
        return
    if not session.id:
        raise InvalidRequest("session_id is empty", param="session_id")
    checked_session(session.id, session.retention_s, session.resume_within_s)
    check_seconds("kv_retention_seconds", session.retention_s, max_retention)


def _check_length(submit: Submit, max_len: int, room: str) -> None:
    prompt = len(submit.prompt_token_ids)
    # A request that is not run may fill the context; any other needs room for one token.
    runs = submit.stopping.max_tokens > 0 or submit.sampling.prompt_logprobs is not None
    longest = max_len - 1 if runs else max_len
    emitted = max((len(opened.emitted) for opened in submit.sequences), default=0)
    if emitted == 0 and prompt > longest:
        raise InvalidRequest(
            f"the prompt has {prompt} tokens; it may have at most {longest}, because {room} "
            f"{max_len} tokens, output included",
            param="prompt",
            code="context_length_exceeded",
        )
    if prompt + emitted > max_len:
        raise InvalidRequest(
            f"the prompt and the emitted tokens are {prompt + emitted} tokens; {room} {max_len}",
            code="context_length_exceeded",
        )


def _check_prediction(prediction: list[int], most: int, vocab_size: int) -> None:
    if len(prediction) > most:
        raise InvalidRequest(
            f"the prediction has {len(prediction)} tokens; at most {most} are allowed",
            param="prediction",
        )
    check_ids("prediction", prediction, vocab_size)


def _check_sequences(submit: Submit, vocab_size: int) -> None:
    count = len(submit.sequences)
    if not 1 <= count <= MAX_N:
        raise InvalidRequest(f"a request must have 1 to {MAX_N} sequences, not {count}", param="n")
    indexes = [opened.index for opened in submit.sequences]
    if len(frozenset(indexes)) != count or min(indexes) < 0 or max(indexes) >= MAX_N:
        raise InvalidRequest(
            f"sequence indexes must be distinct and in 0 to {MAX_N - 1}, not {indexes}", param="n"
        )
    most = submit.stopping.max_tokens
    for opened in submit.sequences:
        if len(opened.emitted) > most:
            raise InvalidRequest(
                f"sequence {opened.index} has emitted {len(opened.emitted)} tokens, "
                f"more than max_tokens, {most}"
            )
        check_ids("emitted", opened.emitted, vocab_size)


def _check_beams(submit: Submit) -> None:
    check_whole("beams", submit.beams, 0, MAX_N)
    if not submit.beams:
        return
    if len(submit.sequences) > submit.beams:
        raise InvalidRequest(
            f"the beam search begins with {len(submit.sequences)} sequences; at most "
            f"{submit.beams} are allowed"
        )
    if submit.grammar is not None or submit.pooling is not None:
        raise InvalidRequest("a beam search can't have a grammar or return vectors")


def _check_together(submit: Submit, max_len: int, most: int) -> None:
    """What all sequences may come to hold together. One alone may fill the context."""
    count = max(len(submit.sequences), submit.beams)
    prompt = len(submit.prompt_token_ids)
    each = min(prompt + submit.stopping.max_tokens, max_len)
    if count > 1 and count * each > most:
        raise InvalidRequest(
            f"{count} sequences of {prompt} prompt tokens and up to"
            f" {each - prompt} more may reach {count * each} tokens; a request may have at most "
            f"{most} (--max-request-tokens)",
            param="n",
        )


def check_advance(
    request: Request,
    sequences: list[OpenSequence],
    *,
    vocab_size: int,
    max_len: int,
    room: str,
    most: int,
) -> None:
    """Raises InvalidRequest for an Advance that the request can't take. most: tokens that all of
    its sequences may have."""
    if request.closed or request.open:
        what = (
            f"{request.open} of its sequences are open"
            if request.open
            else "it is not a beam search"
        )
        raise InvalidRequest(f"the beam search can't continue: {what}")
    if not 1 <= len(sequences) <= request.beams:
        raise InvalidRequest(
            f"a step of the beam search has {len(sequences)} sequences; allowed: 1 to"
            f" {request.beams}"
        )
    indexes = [opened.index for opened in sequences]
    if len(frozenset(indexes)) != len(indexes) or min(indexes) < 0 or max(indexes) >= MAX_N:
        raise InvalidRequest(f"sequence indexes must be distinct and in 0 to {MAX_N - 1}")
    for opened in sequences:
        count = len(request.prompt_token_ids) + len(opened.emitted)
        if count >= max_len:
            raise InvalidRequest(
                f"the prompt and the emitted tokens are {count} tokens, and one more follows; "
                f"{room} {max_len}",
                code="context_length_exceeded",
            )
        check_ids("emitted", opened.emitted, vocab_size)
    tokens = sum(len(request.prompt_token_ids) + len(opened.emitted) + 1 for opened in sequences)
    if len(sequences) > 1 and tokens > most:
        raise InvalidRequest(
            f"the beams have {tokens} tokens in total; a request may have at most {most} "
            "(--max-request-tokens)",
            param="beam_width",
        )


def _check_grammar(submit: Submit, max_bytes: int) -> None:
    if submit.grammar is None:
        return
    size = len(submit.grammar.text.encode())
    if size > max_bytes:
        raise InvalidRequest(
            f"the grammar has {size} bytes; at most {max_bytes} are allowed",
            param="structured_outputs",
        )
    if submit.stopping.ignore_eos:
        raise InvalidRequest(
            "ignore_eos can't be combined with structured outputs, which end with the EOS token",
            param="ignore_eos",
        )


def _check_stopping(stopping: Stopping, vocab_size: int) -> None:
    check_whole("max_tokens", stopping.max_tokens, 0, MAX_COUNT)
    check_whole("min_tokens", stopping.min_tokens, 0, stopping.max_tokens)
    if len(stopping.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(
            f"stop_token_ids has {len(stopping.stop_token_ids)} ids; "
            f"at most {MAX_STOP_TOKEN_IDS} are allowed",
            param="stop_token_ids",
        )
    check_ids("stop_token_ids", stopping.stop_token_ids, vocab_size)
    if (bound := stopping.repetition) is not None:
        check_whole("min_pattern_size", bound.min_pattern, 1, bound.max_pattern)
        check_whole("max_pattern_size", bound.max_pattern, 1, MAX_PATTERN)
        check_whole("min_count", bound.count, 2, MAX_REPETITION // bound.max_pattern)


MAX_NUM_LOGPROBS = 256
"""Log-probabilities of a token that a front end may ask for itself: a beam search compares more
than a client may see."""

MAX_SUPPRESSED = 1024
"""Ids of each list of a transcript's rules; Whisper's have some 90."""

MAX_BAD_WORD_TOKENS = 4 * MAX_BAD_WORD_LENGTH + 4
"""A character may be four bytes, and a byte a token; a word begins with a space or without."""


def check_sampling(
    sampling: TokenSampling, vocab_size: int, limits: LimitSettings, most_logprobs: int
) -> None:
    """Raises InvalidRequest, which says what is wrong and what is allowed."""
    check_number("temperature", sampling.temperature, 0.0, 100.0)
    check_number("top_p", sampling.top_p, 0.0, 1.0)
    if sampling.top_p == 0.0:
        raise InvalidRequest("top_p must be above 0", param="top_p")
    check_number("min_p", sampling.min_p, 0.0, 1.0)
    check_whole("top_k", sampling.top_k, 0, MAX_COUNT)
    check_whole("seed", sampling.seed, 0, MAX_SEED)
    if sampling.logprobs is not None:
        check_whole("logprobs", sampling.logprobs, 0, most_logprobs)
    if sampling.logprob_ids:
        _check_count("logprob_token_ids", len(sampling.logprob_ids), MAX_LOGPROBS)
        check_ids("logprob_token_ids", sampling.logprob_ids, vocab_size)
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
    if wanted.thinking is not None:
        _check_thinking(wanted.thinking, vocab_size)


def _check_thinking(budget: ThinkingBudget, vocab_size: int) -> None:
    name = "thinking_token_budget"
    check_whole(name, budget.tokens, 0, MAX_THINKING_TOKENS)
    if budget.spent is not None:
        check_whole(name, budget.spent, 0, MAX_THINKING_TOKENS)
    _check_count(name, len(budget.ends), MAX_THINKING_MARKS)
    for mark in (budget.begin, budget.closing, *budget.ends):
        if not 1 <= len(mark) <= MAX_THINKING_MARK_TOKENS:
            raise InvalidRequest(
                f"{name}: a mark of thoughts has {len(mark)} tokens; 1 to "
                f"{MAX_THINKING_MARK_TOKENS} are allowed",
                param=name,
            )
        check_ids(name, mark, vocab_size)


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
