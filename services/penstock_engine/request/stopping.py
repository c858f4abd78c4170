"""Decides by its tokens alone whether a sequence has ended."""

from __future__ import annotations

from collections.abc import Sequence as Items

import msgspec

from penstock.protocol.common import Repetition
from penstock.protocol.from_worker import SlotResult
from penstock_engine.request.request import Sequence
from penstock_engine.request.states import SequenceState

Stop = tuple[SequenceState, int | None]
"""How a sequence ends, and the stop id that ended it (None for EOS)."""


def check_stop(sequence: Sequence, max_len: int) -> Stop | None:
    """How the sequence ends with the tokens that it has, or None: it goes on.

    The order is EOS, stop ids, repetition, max_tokens, context full; the first three don't count
    before min_tokens, but for EOS under a grammar, which comes that early only where nothing else
    is allowed.  max_len: tokens of the context, prompt and output.  A sequence whose prompt
    logprobs are still due goes on, even without tokens of its own.
    """
    if sequence.reports_prompt:
        return None
    return _stop_at(sequence, [], max_len)


def until_stop(sequence: Sequence, outcome: SlotResult, max_len: int) -> SlotResult:
    """The outcome without the tokens after one with which the sequence ends: they were drafted
    before anybody looked."""
    tokens = outcome.tokens
    for at in range(len(tokens) - 1):
        if _stop_at(sequence, tokens[: at + 1], max_len) is not None:
            logprobs = outcome.more_logprobs
            return msgspec.structs.replace(
                outcome,
                more=outcome.more[:at],
                more_logprobs=None if logprobs is None else logprobs[:at],
            )
    return outcome


def repeats(tokens: Items[int], bound: Repetition) -> bool:
    """Whether the tokens end in a pattern that comes as often in a row as the bound says.

    Takes time in proportion to the tokens, also where the same one comes again and again, so that
    any size may be the pattern's: others' steps wait for it.
    """
    total = len(tokens)
    least, longest = bound.min_pattern, min(bound.max_pattern, total // bound.count)
    if longest < least or tokens[-1] not in tokens[total - 1 - longest : total - least]:
        return False
    newest = tokens[::-1]
    matches = [0] * (longest + 1)
    """How many of the newest tokens are those that came so much earlier (Gusfield's Z)."""
    begin = end = 0
    for size in range(1, longest + 1):
        same = max(0, min(end - size, matches[size - begin]))
        if size + same >= end:
            while size + same < total and newest[same] == newest[size + same]:
                same += 1
            begin, end = size, size + same
        # A text of period `size` is the same as itself, moved by so much.
        if size >= least and same >= size * (bound.count - 1):
            return True
        matches[size] = same
    return False


def _stop_at(sequence: Sequence, more: list[int], max_len: int) -> Stop | None:
    """How a sequence ends, if it does, with its emitted tokens and more after them."""
    request, emitted = sequence.request, sequence.emitted
    count = len(emitted) + len(more)
    last = more[-1] if more else emitted[-1] if emitted else None
    if last is not None and request.grammar is not None and last in request.eos:
        return SequenceState.FINISHED_STOPPED, None
    if last is not None and count > request.stopping.min_tokens:
        if last in request.eos:
            return SequenceState.FINISHED_STOPPED, None
        if last in request.stops:
            return SequenceState.FINISHED_STOPPED, last
        bound = request.stopping.repetition
        if bound is not None and repeats([*emitted[-bound.tokens :], *more], bound):
            return SequenceState.FINISHED_REPETITION, None
    tokens = len(request.prompt_token_ids) + count
    if tokens >= min(sequence.most_tokens, max_len):
        return SequenceState.FINISHED_LENGTH, None
    return None
