"""Where a sequence goes that waits for nothing but its turn."""

from __future__ import annotations

from penstock_engine.core_state import CoreState
from penstock_engine.request.request import Sequence


def enter(state: CoreState, sequence: Sequence) -> None:
    """A WAITING sequence may run, as soon as its grammar is ready."""
    if state.grammars.is_ready(sequence.request):
        state.scheduling.add(sequence)
    else:
        state.grammars.park(sequence)
