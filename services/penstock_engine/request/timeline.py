"""Where a sequence's time went, for those front ends that ask. No decision depends on it.

Sequences report each change of state here, and StepClock each step that served them.  Everything is
a few additions, done only for who asked.
"""

from __future__ import annotations

from penstock.protocol.to_frontend import SequenceTimeline


class Clock:
    """The time of the core's latest event, in seconds."""

    __slots__ = ("now", "watched")

    def __init__(self) -> None:
        self.now = 0.0
        self.watched = 0  # timelines that are being kept


class TimelineBuilder:
    """One sequence, from its acceptance. Fields are as in SequenceTimeline."""

    __slots__ = (
        "_accepted",
        "_clock",
        "_running",
        "_since",
        "_started",
        "cached_items",
        "cached_tokens",
        "compute",
        "dispatch",
        "drafted",
        "encoded_items",
        "extra_steps",
        "kept",
        "media",
        "media_bytes",
        "preemptions",
        "queue",
        "requeued",
        "share",
        "steps",
        "stored",
        "stored_tokens",
        "swaps",
        "tokens_began",
    )

    def __init__(self, clock: Clock) -> None:
        clock.watched += 1
        self._clock = clock
        self._accepted = self._since = clock.now
        self._running = 0.0
        self._started = False
        self.tokens_began = 0.0  # when its first token came; 0 before
        self.queue = self.requeued = self.compute = self.dispatch = self.share = 0.0
        self.steps = self.preemptions = self.swaps = self.cached_tokens = 0
        self.drafted = self.kept = self.extra_steps = 0
        self.media = self.stored = 0.0
        self.stored_tokens = 0
        self.encoded_items = self.cached_items = self.media_bytes = 0

    def moved(
        self,
        *,
        ran: bool,
        runs: bool,
        preempted: bool,
        loaded: bool = False,
        fetched: bool = False,
    ) -> None:
        """The sequence changes its state. ran, runs: whether it was, and will be, running.
        loaded, fetched: whether it has waited for media, or for KV that is kept elsewhere."""
        now = self._clock.now
        elapsed = now - self._since
        self._since = now
        self.media += elapsed if loaded else 0.0
        self.stored += elapsed if fetched else 0.0
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

    def gained(self, drafted: int, more: int) -> None:
        """A step gave tokens after its first: drafts that were right, or extra steps."""
        if drafted:
            self.drafted += drafted
            self.kept += more
        else:
            self.extra_steps += more

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
            media=self.media,
            encoded_items=self.encoded_items,
            cached_items=self.cached_items,
            media_bytes=self.media_bytes,
            drafted=self.drafted,
            kept=self.kept,
            stored=self.stored,
            stored_tokens=self.stored_tokens,
            extra_steps=self.extra_steps,
        )
