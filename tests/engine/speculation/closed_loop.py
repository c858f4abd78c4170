"""Streams that never end, a machine with given costs, and the policy between them: what it does to
the rate at which tokens come."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from penstock_engine.speculation.draft_policy import Allotment, DraftPolicy, Offer, StepSize
from penstock_engine.speculation.history import SequenceDrafts


@dataclass
class Machine:
    """step: seconds of a step by its rows.  gap: seconds more, where it isn't queued.  jitter: a
    step takes up to this share longer."""

    step: Callable[[int], float]
    gap: float = 0.0
    jitter: float = 0.0


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
    """One step after another, as the engine core has them: the next one is sent before the latest
    is settled, unless that one isn't followed, and without those that have drafts in it."""

    def __init__(self, machine: Machine, streams: list[Stream], *, seed: int = 0) -> None:
        self.policy = DraftPolicy()
        self.machine, self.streams = machine, streams
        self.seconds = 0.0
        self.drafted = self.kept = 0
        self._random = random.Random(seed)
        self._drafts = [SequenceDrafts() for _ in streams]
        self._away: set[int] = set()

    def run(self, seconds: float, *, drafts: bool = True) -> float:
        """Tokens per second in that time."""
        end, before = self.seconds + seconds, sum(stream.tokens for stream in self.streams)
        while self.seconds < end:
            self._step(drafts=drafts)
        return (sum(stream.tokens for stream in self.streams) - before) / seconds

    def _step(self, *, drafts: bool) -> None:
        here = [at for at in range(len(self.streams)) if at not in self._away]
        size = StepSize(len(here), 0)
        offers = [(at, Offer(self._drafts[at], self._drafts[at].proposed)) for at in here]
        offers = [(at, offer) for at, offer in offers if offer.most]
        allotted = Allotment([])
        if drafts and offers:
            allotted = self.policy.choose([offer for _, offer in offers], size, 512)
        given = {at: n for (at, _), n in zip(offers, allotted.counts, strict=False) if n}
        rows = len(here) + sum(given.values())
        compute = self.machine.step(rows) * (1 + self.machine.jitter * self._random.random())
        queued = bool(self._away) or allotted.followed
        kept = sum(self._settle(at, given.get(at, 0)) for at in here)
        gap = 0.0 if queued else self.machine.gap
        self.seconds += compute + gap
        drafted = sum(given.values())
        self.drafted += drafted
        self.kept += kept
        self.policy.settled(size, drafted, compute, gap, behind=queued, each=0.0)
        if given:
            self.policy.account(size, len(given), drafted, kept, followed=allotted.followed)
        follows = allotted.followed and len(given) < len(here)
        self._away = set(given) if follows else set()

    def _settle(self, at: int, drafted: int) -> int:
        """How many drafts of a stream were right."""
        stream, drafts, draw = self.streams[at], self._drafts[at], self._random.random
        kept = 0
        while kept < drafted and draw() < stream.chance(kept):
            kept += 1
        stream.tokens += 1 + kept
        guessed = draw() < stream.chance(0) if stream.told and drafts.proposed else None
        drafts.proposed = stream.proposed if draw() < stream.share else 0
        if drafted:
            self.policy.observe(drafts, drafted, kept)
        else:
            self.policy.undrafted(drafts, guessed)
        return kept
