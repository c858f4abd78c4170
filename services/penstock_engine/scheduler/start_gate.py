"""What else a sequence needs to start, beside a slot, KV blocks and its media."""

from __future__ import annotations

from penstock_engine.request.request import Sequence


class StartGate:
    """Asked by the scheduler for the head of the queue. This one lets everybody start; a subclass
    may have some wait, and is told who gets a slot and gives it up."""

    @property
    def num_waiting(self) -> int:
        """Sequences that it has taken out of the queue."""
        return 0

    def may_start(self, sequence: Sequence) -> bool:
        """Whether the head of the queue may start. If not, it has been taken out of the queue, and
        comes back when it may."""
        return True

    def occupied(self, sequence: Sequence) -> None:
        """Called when the sequence has got a slot."""

    def vacated(self, sequence: Sequence) -> None:
        """Called when the sequence has given up its slot."""
