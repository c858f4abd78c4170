"""How long each step took, and how its time is shared out among the sequences that it served."""

from __future__ import annotations

from penstock_engine.request.step_in_flight import StepInFlight
from penstock_engine.request.timeline import Clock


class StepClock:
    """Times the oldest step in flight.

    A step begins when it is sent, or when the one before it is settled, if that is later: so the
    steps' times add up to the time in which there were any.
    """

    __slots__ = ("_begun", "_clock", "_in_flight")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun = 0.0
        self._in_flight = 0

    def planned(self) -> None:
        """A step has been sent."""
        if not self._in_flight:
            self._begun = self._clock.now
        self._in_flight += 1

    def settled(self, step: StepInFlight, seconds: float) -> float:
        """The step's own time, in seconds. Call it when a result has come, before it is applied.

        seconds: what the worker says that it took; each sequence's share of them goes by its
        tokens.
        """
        now = self._clock.now
        whole = now - self._begun
        # Below zero for a second result that came in one turn with the first, whose gap it evens.
        gap = whole - seconds
        self._begun = now
        self._in_flight -= 1
        if self._clock.watched:
            self._share_out(step, seconds, gap)
        return whole

    def _share_out(self, step: StepInFlight, seconds: float, gap: float) -> None:
        each = seconds / max(step.tokens, 1)
        for sequence, end, samples in step.items:
            timeline = sequence.timeline
            if timeline is None:
                continue
            timeline.steps += 1
            timeline.compute += seconds
            timeline.dispatch += gap
            drafts = step.drafts.get(sequence.slot, 0) if sequence.slot is not None else 0
            progress = sequence.progress
            timeline.share += each * (end + progress.kept - progress.computed + drafts)
            if samples and not timeline.tokens_began:
                timeline.tokens_began = self._clock.now

    def forget(self) -> None:
        """The worker is gone, and its steps with it."""
        self._in_flight = 0
