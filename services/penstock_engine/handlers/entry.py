"""Puts a sequence that needs nothing but its turn into the queue, or has it wait for its
grammar."""

from __future__ import annotations

from penstock_engine.core_state import CoreState
from penstock_engine.request.request import Sequence


def enter(state: CoreState, sequence: Sequence) -> None:
    """A WAITING sequence may run, as soon as its grammar is ready."""
    if state.grammars.is_ready(sequence.request):
        state.scheduling.add(sequence)
    else:
        state.grammars.park(sequence)
