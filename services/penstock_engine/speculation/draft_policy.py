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

WORST = 3.0
"""In steps: what a step may cost at most in the account. One that takes longer was held up by
something else."""

FEW, WIDER = 8, 1.25
"""Drafts that a step may have however much more it computes than any before; and how many times as
many rows as the largest one it may have."""

RENEW, BARE = 64, 2
"""After so many steps with drafts so many have none: what these take is what those are compared
with."""

AGAIN = 512
"""After so many steps without drafts the few that there were say nothing any more of what drafts
cost: they may have met a machine that was busy."""


class Offer(NamedTuple):
    """A sequence of the step that could have drafts: at most so many."""

    drafts: SequenceDrafts
    most: int


class StepSize(NamedTuple):
    """A step without drafts. decodes: sequences that it computes one token of.  prefill: its other
    tokens."""

    decodes: int
    prefill: int


class DraftPolicy:
    """Tokens per second of a step, with drafts and without.

    Drafts are added in the order of their chances to be right.  Each one that is right saves a
    decode's part of a step of decodes: that is what time is worth, also in a step with prefill,
    whose tokens have to be computed anyway.  All of them cost their rows.  Seconds are those from
    one step to the next, so that all which drafts cost is in them, wherever it is spent.

    It can be wrong: about chances, because texts change, and about seconds, because machines do. So
    there is an account in steps: what drafts cost and saved, and a small allowance.  While it is
    overdrawn there are none.
    """

    def __init__(self) -> None:
        self._prior = Acceptance(fade=0.99, first=0.7, weight=4.0)
        """Of all sequences."""
        self._seconds = StepSeconds()
        self._credit = MOST_CREDIT
        self._in_a_row = 0
        self._bare = 0  # steps without drafts that are due
        self._without = 0  # steps since the last with drafts
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
        self, size: StepSize, drafted: int, kept: int, seconds: float, *, each: float
    ) -> None:
        """A step was settled, with so many drafts, of which some were right. seconds: since the
        step before; each: seconds of a further token of prefill, as far as known."""
        self._each = each
        if seconds <= 0.0:
            return
        self._without = 0 if drafted else self._without + 1
        if self._without == AGAIN:
            self._without = 0
            self._seconds.forget_rare()
        credit = self._credit + SHARE
        if drafted:
            credit += self._earned(size, drafted, kept, seconds)
        self._credit = min(MOST_CREDIT, credit)
        if not size.prefill:
            self._seconds.observe(size.decodes + drafted, seconds)

    def _earned(self, size: StepSize, drafted: int, kept: int, seconds: float) -> float:
        """In steps, what a step with drafts has saved beyond what it cost; less than 0 if it
        didn't save as much."""
        base = self._of(size.decodes)
        if not base:
            return 0.0
        if size.prefill:
            # How long it would have taken is not known.
            cost = self._extra(size.decodes, drafted) / base
        else:
            cost = seconds / base - 1.0
        return kept / size.decodes - min(cost, WORST)

    # ---- what follows from it

    def choose(self, offers: list[Offer], size: StepSize, left: int) -> list[int]:
        """Drafts for each offer. left: that the step has room for."""
        none = [0] * len(offers)
        if self._credit < 0.0:
            return none
        if self._in_a_row >= RENEW:
            self._in_a_row, self._bare = 0, BARE
        if self._bare:
            self._bare -= 1
            return none
        left = min(left, max(FEW, int(WIDER * self._seconds.largest) - size.decodes))
        chosen = self._best(offers, size, left) or self._attempt(offers, size, left)
        if chosen is None:
            self._in_a_row = 0
            return none
        self._in_a_row += 1
        return chosen

    def _best(self, offers: list[Offer], size: StepSize, left: int) -> list[int] | None:
        """What makes tokens come fastest; None: no drafts."""
        drafts = self._ordered(offers)[:left]
        least = MARGIN * self._rate(size.decodes, 0, 0.0)
        best = looked_at = 0
        gained = 0.0
        for number, (chance, _, _) in enumerate(drafts, 1):
            gained -= chance
            if number < len(drafts) and 8 * (number - looked_at) < number:
                continue  # Of many drafts each number isn't looked at.
            looked_at = number
            rate = self._rate(size.decodes, number, gained)
            if rate > least:
                least, best = rate, number
        if not best:
            return None
        counts = [0] * len(offers)
        for _, _, offer in drafts[:best]:
            counts[offer] += 1
        return counts

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

    def _attempt(self, offers: list[Offer], size: StepSize, left: int) -> list[int] | None:
        """A few drafts of one sequence that nothing is known of lately."""
        due = next((at for at, offer in enumerate(offers) if offer.drafts.may_try), None)
        if due is None or self._credit < RESERVE:
            return None
        most = min(offers[due].most, left)
        hoped = sum(SURE**place for place in range(1, most + 1))
        plain = self._rate(size.decodes, 0, 0.0)
        if self._rate(size.decodes, most, hoped) <= MARGIN * plain:
            return None
        counts = [0] * len(offers)
        counts[due] = min(ATTEMPT, most)
        return counts

    # ---- seconds

    def _rate(self, decodes: int, drafts: int, gained: float) -> float:
        """Tokens per second of a step of decodes with so many drafts, of which so many are right;
        where no step's seconds are known, tokens."""
        base = self._of(decodes)
        if not base:
            return decodes + gained
        return (decodes + gained) / (base + self._extra(decodes, drafts))

    def _extra(self, decodes: int, drafts: int) -> float:
        return max(0.0, self._of(decodes + drafts) - self._of(decodes))

    def _of(self, rows: int) -> float:
        return self._seconds.of(rows, self._each)
