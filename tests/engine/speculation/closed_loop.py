"""Streams that never end, a machine with given costs, and the policy between them: what it does to
the rate at which tokens come."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from penstock_engine.speculation.draft_policy import DraftPolicy, Offer, StepSize
from penstock_engine.speculation.history import SequenceDrafts


@dataclass
class Machine:
    """step: seconds of a step by its rows.  beside: seconds more of each draft, which are not spent
    on its row.  jitter: a step takes up to this share longer.  each: seconds of a further
    token of prefill."""

    step: Callable[[int], float]
    beside: float = 0.0
    jitter: float = 0.0
    each: float = 0.0


@dataclass
class Stream:
    """chance: that a draft is right, after right ones.  proposed: drafts that there are at a time,
    in so large a share of its places.  told: the worker says what it would have guessed."""

    chance: Callable[[int], float]
    proposed: int = 8
    share: float = 1.0
    told: bool = True
    tokens: int = 0


class ClosedLoop:
    """One step after another, as the engine core has them: each is sent before the latest is
    settled, so what is known of proposals is one step old."""

    def __init__(self, machine: Machine, streams: list[Stream], *, seed: int = 0) -> None:
        self.policy = DraftPolicy()
        self.machine = machine
        self.seconds = 0.0
        self.drafted = self.kept = self.steps = self.wants_proposed = 0
        self._random = random.Random(seed)
        self.go_on(streams)

    def go_on(self, streams: list[Stream]) -> None:
        """With others in their place; what the policy has learnt stays."""
        self.streams = streams
        self._drafts = [SequenceDrafts() for _ in streams]
        self._proposed = [0] * len(streams)
        """What there is when the step is computed."""
        self._looked = False

    def run(self, seconds: float, *, drafts: bool = True) -> float:
        """Tokens per second in that time."""
        end, before = self.seconds + seconds, sum(stream.tokens for stream in self.streams)
        while self.seconds < end:
            self._step(drafts=drafts)
        return (sum(stream.tokens for stream in self.streams) - before) / seconds

    def _step(self, *, drafts: bool) -> None:
        number = len(self.streams)
        size = StepSize(number, 0)
        offers = [Offer(each, each.hoped) for each in self._drafts]
        counts = [0] * number
        if drafts and any(offer.most for offer in offers):
            counts = self.policy.choose(offers, size, 512)
        wants_proposed = any(counts) or self.policy.wants_proposed(number)
        self.steps += 1
        self.wants_proposed += wants_proposed
        given = [min(*each) for each in zip(counts, self._proposed, strict=True)]
        drafted = sum(given)
        compute = self.machine.step(number + drafted) + self.machine.beside * drafted
        compute *= 1 + self.machine.jitter * self._random.random()
        kept = sum(self._settle(at, count, wants_proposed) for at, count in enumerate(given))
        self.seconds += compute
        self.drafted += drafted
        self.kept += kept
        self.policy.settled(size, drafted, kept, compute, each=self.machine.each)
        self._looked = wants_proposed

    def _settle(self, at: int, drafted: int, wants_proposed: bool) -> int:
        """How many drafts of a stream were right."""
        stream, drafts, draw = self.streams[at], self._drafts[at], self._random.random
        kept = 0
        while kept < drafted and draw() < stream.chance(kept):
            kept += 1
        stream.tokens += 1 + kept
        tells = stream.told and self._proposed[at] and self._looked
        guessed = draw() < stream.chance(0) if tells else None
        self._proposed[at] = stream.proposed if draw() < stream.share else 0
        if wants_proposed:
            drafts.propose(self._proposed[at])
        if drafted:
            self.policy.observe(drafts, drafted, kept)
        else:
            self.policy.undrafted(drafts, guessed)
        return kept
