"""When a sequence has ended, by its tokens alone."""

from __future__ import annotations

from penstock_engine.request.request import Sequence
from penstock_engine.request.states import SequenceState


def check_stop(sequence: Sequence, max_len: int) -> tuple[SequenceState, int | None] | None:
    """How the sequence ends with the tokens that it has, or None: it goes on.

    The order is EOS, stop ids, max_tokens, context full; ids don't count before min_tokens, but for
    EOS under a grammar, which comes that early only where nothing else is allowed.  The second
    value is the stop id that ended it (None for EOS).  max_len: tokens of the context, prompt and
    output.  One whose prompt is still to be told about goes on, also without tokens of its own.
    """
    if sequence.reports_prompt:
        return None
    request = sequence.request
    emitted = sequence.emitted
    count = len(emitted)
    if count and request.grammar is not None and emitted[-1] in request.eos:
        return SequenceState.FINISHED_STOPPED, None
    if count > request.stopping.min_tokens:
        last = emitted[-1]
        if last in request.eos:
            return SequenceState.FINISHED_STOPPED, None
        if last in request.stops:
            return SequenceState.FINISHED_STOPPED, last
    if sequence.num_tokens >= min(sequence.most_tokens, max_len):
        return SequenceState.FINISHED_LENGTH, None
    return None
