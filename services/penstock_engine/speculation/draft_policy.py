"""How many tokens to draft for whom in a step: as many as make tokens come faster, by what was
learnt of drafts and of steps."""

from __future__ import annotations

from typing import NamedTuple

from penstock_engine.speculation.acceptance import Acceptance
from penstock_engine.speculation.history import SequenceDrafts
from penstock_engine.speculation.step_seconds import StepSeconds

MAX_DRAFTS = 64
"""Of a sequence and step, whatever a worker proposes."""

LEAST_CHANCE = 0.02
"""A draft that is right less often is not considered."""

MARGIN = 1.03
"""How many times as fast tokens have to come with drafts as without, by what is known: it is not
known exactly."""

ATTEMPT = 2
"""Drafts where it is not known that they pay, so that it becomes known."""

SURE = 0.9
"""An attempt is made only where drafts would pay that are right so often."""

SHARE = 0.01
"""Of all steps' time, what drafts may cost beyond what they save."""

MOST_CREDIT, RESERVE = 3.0, 1.0
"""In steps: what drafts may cost at a time before they have saved as much, and what of it attempts
leave to others."""

FEW, WIDER = 8, 1.25
"""Drafts that a step may have however much more it computes than any before; and how many times as
many rows as the largest one it may have."""

RENEW = 128
"""After so many steps with drafts one has none: what it takes is what they are compared with."""

GAP_WEIGHT = 0.1
"""Of the newest step in what is known of the time between steps."""


class Offer(NamedTuple):
    """A sequence of the step that could have drafts: at most so many."""

    drafts: SequenceDrafts
    most: int


class StepSize(NamedTuple):
    """A step without drafts. decodes: sequences that it computes one token of.  prefill: its other
    tokens."""

    decodes: int
    prefill: int


class Allotment(NamedTuple):
    """counts: drafts by offer.  followed: whether the step may be followed before it is settled,
    by one without the sequences that have drafts in it."""

    counts: list[int]
    followed: bool = True


class DraftPolicy:
    """Tokens per second of a step and of what comes behind it, with drafts and without.

    Drafts are added in the order of their chances to be right.  Each one that is right saves a
    decode's part of a step of decodes: that is what time is worth, also in a step with prefill,
    whose tokens have to be computed anyway.  All of them cost their rows.  And as nothing can
    follow a sequence before it is known which were right, either everybody waits for the next step
    (the gap between two steps that aren't queued), or only those with drafts do, and miss one.

    It can be wrong: about chances, because texts change, and about seconds, because machines do. So
    there is an account in steps: what drafts cost and saved, and a small allowance.  While it is
    overdrawn there are none.
    """

    def __init__(self) -> None:
        self._prior = Acceptance(fade=0.99, first=0.7, weight=4.0)
        """Of all sequences."""
        self._seconds = StepSeconds()
        self._gaps = {True: 0.0, False: 0.0}
        """Seconds of steps beyond what the worker computes: of those that were sent while another
        was under way, and of others."""
        self._credit = MOST_CREDIT
        self._in_a_row = 0
        self._each = 0.0

    # ---- what is learnt

    def undrafted(self, drafts: SequenceDrafts, guessed: bool | None) -> None:
        """A sequence's token came without drafts."""
        drafts.undrafted(guessed)
        if guessed is not None:
            self._prior.guessed(right=guessed)

    def observe(self, drafts: SequenceDrafts, drafted: int, kept: int) -> None:
        """A sequence's token came, and of so many drafts behind it the first `kept` were right."""
        drafts.observe(drafted, kept)
        self._prior.observe(drafted, kept)

    def settled(
        self,
        size: StepSize,
        drafted: int,
        seconds: float,
        gap: float,
        *,
        behind: bool,
        each: float,
    ) -> None:
        """A step was settled, with so many drafts. seconds: that the worker computed; gap: that it
        took beyond; behind: whether it was sent while another was under way; each: seconds of a
        further token of prefill, as far as known."""
        self._each = each
        if seconds <= 0.0:
            return
        if not size.prefill:
            self._seconds.observe(size.decodes + drafted, seconds)
        self._gaps[behind] += GAP_WEIGHT * (gap - self._gaps[behind])
        self._credit = min(MOST_CREDIT, self._credit + SHARE)

    def account(
        self, size: StepSize, drafting: int, drafted: int, kept: int, *, followed: bool
    ) -> None:
        """Of a step with drafts of `drafting` sequences, what they cost and saved."""
        base = self._of(size.decodes)
        if not base:
            return
        cost = self._extra(size, drafted) / base
        if followed:
            cost += self._of(size.decodes - drafting) / base - 1.0
            kept -= drafting
        else:
            cost += self._gap / base
        self._credit = min(MOST_CREDIT, self._credit + kept / size.decodes - cost)

    # ---- what follows from it

    def choose(self, offers: list[Offer], size: StepSize, left: int) -> Allotment:
        """left: drafts that the step has room for."""
        none = Allotment([0] * len(offers))
        if self._credit < 0.0:
            return none
        left = min(left, max(FEW, int(WIDER * self._seconds.largest) - size.decodes))
        if self._in_a_row >= RENEW:
            self._in_a_row = 0
            return none
        chosen = self._best(offers, size, left) or self._attempt(offers, size, left)
        self._in_a_row = 0 if chosen is None else self._in_a_row + 1
        return chosen or none

    def _best(self, offers: list[Offer], size: StepSize, left: int) -> Allotment | None:
        """What makes tokens come fastest; None: no drafts."""
        drafts = self._ordered(offers)[:left]
        rates = self._rates(size.decodes)
        least = MARGIN * rates.plain
        best = number = looked_at = 0
        followed, gained = False, 0.0
        drafting: set[int] = set()
        for chance, _, offer in drafts:
            number += 1
            gained -= chance
            drafting.add(offer)
            if number < len(drafts) and 8 * (number - looked_at) < number:
                continue  # Of many drafts each number isn't looked at.
            looked_at = number
            alone = rates.alone(number, gained)
            beside = rates.followed(number, gained, len(drafting))
            if max(alone, beside) > least:
                least, best, followed = max(alone, beside), number, beside > alone
        if not best:
            return None
        counts = [0] * len(offers)
        for _, _, offer in drafts[:best]:
            counts[offer] += 1
        return Allotment(counts, followed)

    def _ordered(self, offers: list[Offer]) -> list[tuple[float, int, int]]:
        """(less than 0 by its chance, place, offer) of each draft, the likeliest first."""
        found = [
            (-chance, place, number)
            for number, offer in enumerate(offers)
            for place, chance in enumerate(offer.drafts.chances(self._prior, offer.most))
            if chance >= LEAST_CHANCE
        ]
        found.sort()
        return found

    def _attempt(self, offers: list[Offer], size: StepSize, left: int) -> Allotment | None:
        """A few drafts of one sequence that nothing is known of lately."""
        due = next((at for at, offer in enumerate(offers) if offer.drafts.may_try), None)
        if due is None or self._credit < RESERVE:
            return None
        most = min(offers[due].most, left)
        hoped = sum(SURE**place for place in range(1, most + 1))
        rates = self._rates(size.decodes)
        if rates.alone(most, hoped) <= MARGIN * rates.plain:
            return None
        counts = [0] * len(offers)
        counts[due] = min(ATTEMPT, most)
        return Allotment(counts, followed=False)

    # ---- seconds

    def _rates(self, decodes: int) -> _Rates:
        return _Rates(decodes, self._seconds, self._gap, self._each)

    def _extra(self, size: StepSize, drafts: int) -> float:
        return max(0.0, self._of(size.decodes + drafts) - self._of(size.decodes))

    def _of(self, rows: int) -> float:
        return self._seconds.of(rows, self._each)

    @property
    def _gap(self) -> float:
        """What a step costs more where it isn't queued behind another."""
        return max(0.0, self._gaps[False] - self._gaps[True])


class _Rates:
    """Tokens per second of a step of decodes, with drafts in it and without; where no step's
    seconds are known, tokens per step."""

    def __init__(self, decodes: int, seconds: StepSeconds, gap: float, each: float) -> None:
        self._decodes, self._seconds, self._each = decodes, seconds, each
        self._known = seconds.of(decodes, each)
        self._base, self._gap = (self._known, gap) if self._known else (1.0, 0.0)
        self.plain = decodes / self._base
        """Without drafts."""

    def _with(self, drafts: int) -> float:
        """Seconds of the step with so many."""
        more = self._seconds.of(self._decodes + drafts, self._each) - self._known
        return self._base + max(0.0, more)

    def alone(self, drafts: int, gained: float) -> float:
        """Where nothing follows before the step is settled. gained: drafts that are right."""
        return (self._decodes + gained) / (self._with(drafts) + self._gap)

    def followed(self, drafts: int, gained: float, drafting: int) -> float:
        """Where a step of the others follows, without those `drafting`."""
        others = self._decodes - drafting
        if others < 1 or not self._known:
            return 0.0
        seconds = self._with(drafts) + self._seconds.of(others, self._each)
        return (self._decodes + gained + others) / seconds
