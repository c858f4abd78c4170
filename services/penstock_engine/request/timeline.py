"""Where a sequence's time went, for those front ends that ask. No decision depends on it.

The core tells the Clock what time it is; sequences tell their TimelineBuilder of each change of
state; the Clock hands out each settled step.  Everything is a few additions, done only for who
asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.to_frontend import SequenceTimeline

if TYPE_CHECKING:
    from penstock_engine.request.step_builder import StepInFlight


class Clock:
    """The time that the core was last told, and when the oldest step in flight began.

    A step begins when it is sent, or when the one before it is settled, if that is later: so the
    steps' times add up to the time in which there were any.  watched: timelines that are kept.
    """

    __slots__ = ("_begun", "_in_flight", "now", "watched")

    def __init__(self) -> None:
        self.now = 0.0
        self.watched = 0
        self._begun = 0.0
        self._in_flight = 0

    def planned(self) -> None:
        """A step has been sent."""
        if not self._in_flight:
            self._begun = self.now
        self._in_flight += 1

    def settled(self, step: StepInFlight, seconds: float) -> float:
        """A step's result has come; it has not been applied yet. seconds: what the worker says
        that it took.  Each sequence's share of them goes by its tokens.  Returns the step's own
        time."""
        whole = self.now - self._begun
        # Below zero for a second result that came in one turn with the first, whose gap it evens.
        gap = whole - seconds
        self._begun = self.now
        self._in_flight -= 1
        if self.watched:
            self._share_out(step, seconds, gap)
        return whole

    def _share_out(self, step: StepInFlight, seconds: float, gap: float) -> None:
        each = seconds / step.tokens
        for sequence, end, samples in step.items:
            timeline = sequence.timeline
            if timeline is None:
                continue
            timeline.steps += 1
            timeline.compute += seconds
            timeline.dispatch += gap
            timeline.share += each * (end - sequence.num_computed)
            if samples and not timeline.tokens_began:
                timeline.tokens_began = self.now

    def forget(self) -> None:
        """The worker is gone, and its steps with it."""
        self._in_flight = 0


class TimelineBuilder:
    """One sequence, from its acceptance. Fields are as in SequenceTimeline.

    tokens_began: when its first token came; 0 before.
    """

    __slots__ = (
        "_accepted",
        "_clock",
        "_running",
        "_since",
        "_started",
        "cached_tokens",
        "compute",
        "dispatch",
        "preemptions",
        "queue",
        "requeued",
        "share",
        "steps",
        "swaps",
        "tokens_began",
    )

    def __init__(self, clock: Clock) -> None:
        clock.watched += 1
        self._clock = clock
        self._accepted = self._since = clock.now
        self._running = 0.0
        self._started = False
        self.tokens_began = 0.0
        self.queue = self.requeued = self.compute = self.dispatch = self.share = 0.0
        self.steps = self.preemptions = self.swaps = self.cached_tokens = 0

    def moved(self, *, ran: bool, runs: bool, preempted: bool) -> None:
        """The sequence changes its state. ran, runs: whether it was, and will be, running."""
        now = self._clock.now
        elapsed = now - self._since
        self._since = now
        if ran:
            self._running += elapsed
        elif self._started:
            self.requeued += elapsed
        else:
            self.queue += elapsed
        self._started |= runs
        self.preemptions += preempted

    def found(self, cached_tokens: int, swapped: int) -> None:
        """The sequence starts with so many of its prompt's tokens computed, and so many blocks
        brought back from the host."""
        self.cached_tokens = max(self.cached_tokens, cached_tokens)
        self.swaps += swapped

    def close(self) -> SequenceTimeline:
        """What the front end gets; the sequence has ended."""
        self._clock.watched -= 1
        began = self.tokens_began
        in_steps = self.compute + self.dispatch
        return SequenceTimeline(
            queue=self.queue,
            requeued=self.requeued,
            compute=min(self.compute, in_steps),
            dispatch=max(self.dispatch, 0.0),
            idle=max(self._running - in_steps, 0.0),
            share=self.share,
            first_token=began - self._accepted if began else None,
            steps=self.steps,
            preemptions=self.preemptions,
            swaps=self.swaps,
            cached_tokens=self.cached_tokens,
        )
