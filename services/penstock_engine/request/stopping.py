"""Decides by its tokens alone whether a sequence has ended."""

from __future__ import annotations

import msgspec

from penstock.protocol.from_worker import SlotResult
from penstock_engine.request.request import Sequence
from penstock_engine.request.states import SequenceState

Stop = tuple[SequenceState, int | None]
"""How a sequence ends, and the stop id that ended it (None for EOS)."""


def check_stop(sequence: Sequence, max_len: int) -> Stop | None:
    """How the sequence ends with the tokens that it has, or None: it goes on.

    The order is EOS, stop ids, max_tokens, context full; ids don't count before min_tokens, but for
    EOS under a grammar, which comes that early only where nothing else is allowed.  max_len: tokens
    of the context, prompt and output.  One whose prompt is still to be told about goes on, also
    without tokens of its own.
    """
    if sequence.reports_prompt:
        return None
    emitted = sequence.emitted
    last = emitted[-1] if emitted else None
    return _stop_at(sequence, len(emitted), last, max_len)


def until_stop(sequence: Sequence, outcome: SlotResult, max_len: int) -> SlotResult:
    """The outcome without the tokens after one with which the sequence ends: they were drafted
    before anybody looked."""
    tokens, count = outcome.tokens, len(sequence.emitted)
    for at, token in enumerate(tokens[:-1]):
        if _stop_at(sequence, count + at + 1, token, max_len) is not None:
            logprobs = outcome.more_logprobs
            return msgspec.structs.replace(
                outcome,
                more=outcome.more[:at],
                more_logprobs=None if logprobs is None else logprobs[:at],
            )
    return outcome


def _stop_at(sequence: Sequence, count: int, last: int | None, max_len: int) -> Stop | None:
    """How a sequence ends, if it does, with so many emitted tokens, of which `last` is the last."""
    request = sequence.request
    if last is not None and request.grammar is not None and last in request.eos:
        return SequenceState.FINISHED_STOPPED, None
    if last is not None and count > request.stopping.min_tokens:
        if last in request.eos:
            return SequenceState.FINISHED_STOPPED, None
        if last in request.stops:
            return SequenceState.FINISHED_STOPPED, last
    tokens = len(request.prompt_token_ids) + count
    if tokens >= min(sequence.most_tokens, max_len):
        return SequenceState.FINISHED_LENGTH, None
    return None
