"""How many tokens to draft for whom in a step: as many as make tokens come faster, by what was
learnt of drafts and of steps."""

from __future__ import annotations

import math
from typing import NamedTuple

from penstock_engine.speculation.history import Acceptance, SequenceDrafts
from penstock_engine.speculation.step_seconds import StepSeconds

MAX_DRAFTS = 64
"""Most drafts of a sequence in a step, whatever a worker proposes."""

LEAST_CHANCE = 0.02
"""A draft that is right less often is not considered."""

CAUTION, LEAST_GAIN = 0.25, 0.01
"""What drafts have to save beyond what they cost: such a share of that, and so much of a step, as
neither is known exactly."""

ATTEMPT = 2
"""Drafts where it is not known that they pay, so that it becomes known."""

SURE = 0.9
"""An attempt is made only where drafts would pay that are right so often."""

SHARE = 0.01
"""Share of all steps' time that drafts may cost beyond what they save."""

MOST_CREDIT, RESERVE = 3.0, 1.0
"""In steps: what drafts may cost at a time before they have saved as much, and what of it attempts
leave to others."""

FIRST_CREDIT = 1.0
"""In steps: what they may cost of the first steps, of which nothing is known."""

WORST = 3.0
"""In steps: what a step may cost at most in the account. One that takes longer was held up by
something else."""

FEW, WIDER = 8, 1.25
"""Drafts that a step may have however much more it computes than any before; and how many times as
many rows as the largest one it may have."""

GLANCE, RARELY = 4, 32
"""Numbers of steps between two looks at what could be proposed: while drafts don't pay at present,
and while none would pay at the present rate of acceptance."""

LATELY = 16
"""Number of steps after the last drafts during which each step looks at what could be proposed."""

AGAIN = 512
"""Number of steps without drafts after which earlier measurements of their cost count no more: they
may have met a machine that was busy."""


WAIT_WEIGHT = 0.1
"""Weight of the newest wait in what is known of waits."""

PROPOSALS = (1, 2, 4, 8, MAX_DRAFTS)
"""Drafts of a sequence for which `least_proposed` looks whether they pay."""


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
    """How fast sequences get on, with drafts and without.

    A step with drafts takes longer, for all that are in it: those whose drafts are right get on
    faster, and the others more slowly.  So it is not the sum of their tokens that counts but the
    geometric mean of how many times as fast each of them is: what one gains at the others' cost is
    no gain.  Drafts are added in the order of what they add to it, given their chances, as far as
    the whole becomes faster.  In a step with prefill, whose tokens have to be computed anyway, time
    is worth what it is in a step of decodes.  Seconds are those from one step to the next, so that
    all which drafts cost is in them, wherever it is spent.

    It can be wrong: about chances, because texts change, and about seconds, because machines do. So
    there is an account in steps: what drafts cost and saved, and a small allowance.  While it is
    overdrawn there are none.
    """

    def __init__(self) -> None:
        self._prior = Acceptance(fade=0.99, first=0.7, weight=4.0)
        """Acceptance of the drafts of all sequences."""
        self._seconds = StepSeconds()
        self._credit = FIRST_CREDIT
        self._bare = BareSteps()
        self._without = 0  # steps since the last with drafts
        self._paying: dict[int, bool] = {}
        """What `_may_pay` has found lately, by the number of decodes."""
        self._each = 0.0
        self._wait = 0.0
        """Seconds from one step to the next that wasn't sent ahead."""

    # ---- what is learnt

    def undrafted(self, drafts: SequenceDrafts, guessed: bool | None) -> None:
        """A sequence's token came without drafts."""
        drafts.undrafted(guessed)
        if guessed is not None:
            self._prior.guessed(right=guessed)

    def observe(self, drafts: SequenceDrafts, drafted: int, kept: int) -> None:
        """A sequence's token came, and of so many drafts after it the first `kept` were right."""
        drafts.observe(drafted, kept)
        self._prior.observe(drafted, kept)

    def waited(self, seconds: float) -> None:
        """The worker has had nothing to do for so long before a step that goes on by itself."""
        self._wait += WAIT_WEIGHT * (seconds - self._wait)

    def settled(
        self, size: StepSize, drafted: int, kept: int, seconds: float, *, each: float
    ) -> None:
        """A step was settled, with so many drafts, of which some were right. seconds: since the
        step before; each: seconds of a further token of prefill, as far as known."""
        self._each = each
        if seconds <= 0.0:
            return
        self._without = 0 if drafted else self._without + 1
        if self._without % GLANCE == 0:
            self._paying.clear()
        if self._without == AGAIN:
            self._without = 0
            self._seconds.forget_rare()
        credit = self._credit + SHARE
        if drafted:
            credit += self._earned(size, drafted, kept, seconds)
        self._credit = min(MOST_CREDIT, credit)
        if not size.prefill:
            self._seconds.observe(size.decodes + drafted, seconds, each)

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

    def seconds(self, decodes: int) -> float:
        """What a step of so many decodes takes, from the one before; 0.0: none was seen."""
        return self._of(decodes)

    def wants_proposed(self, decodes: int) -> bool:
        """Whether the worker is to look up what it could propose after a step of so many decodes.
        It takes time, too."""
        if self._without < LATELY:
            return True
        return self._without % (GLANCE if self._may_pay(decodes) else RARELY) == 0

    def choose(self, offers: list[Offer], size: StepSize, left: int) -> list[int]:
        """Drafts for each offer. left: that the step has room for."""
        none = [0] * len(offers)
        if self._credit < 0.0 or self._bare.due() or not self._may_pay(size.decodes):
            return none
        left = min(left, self._most(size.decodes))
        chosen = self._best(offers, size, left) or self._attempt(offers, size, left)
        if chosen is None:
            return none
        self._bare.drafted(size.decodes)
        return chosen

    def least_proposed(self, sequences: list[SequenceDrafts], size: StepSize, left: int) -> int:
        """Drafts that could be proposed, for all these together, so that some would be chosen; 0:
        no number of them would. left: that a step has room for."""
        if self._credit < 0.0 or not sequences or not self._may_pay(size.decodes):
            return 0
        left = min(left, self._most(size.decodes))
        base = self._of(size.decodes)
        # The step ends early, so that there is one more for all to wait for.
        toll = math.log1p(self._wait / base) if base else 0.0
        prior = self._prior.by_place()
        best = max(sequences, key=lambda drafts: sum(drafts.chances(prior, FEW)))
        for most in PROPOSALS:
            if self._best([Offer(best, most)], size, left, toll):
                return most
            if self._best([Offer(drafts, most) for drafts in sequences], size, left, toll):
                return most * len(sequences)
        return 0

    def _best(
        self, offers: list[Offer], size: StepSize, left: int, toll: float = 0.0
    ) -> list[int] | None:
        """What makes sequences get on fastest; None: no drafts. toll: the logarithm of how many
        times as long the step takes because there are any."""
        decodes = max(size.decodes, 1)
        drafts = self._ordered(offers)[:left]
        best = looked_at = 0
        gained = least = sure = 0.0
        toll *= decodes
        if not self._enough(decodes, 1, -sum(gain for gain, _, _ in drafts) - toll):
            return None  # All of them together are not worth what one costs.
        for number, (gain, _, _) in enumerate(drafts, 1):
            gained -= gain
            if number < len(drafts) and 8 * (number - looked_at) < number:
                continue  # Of many drafts each number isn't looked at.
            looked_at = number
            faster = gained / decodes - self._slower(decodes, number)
            if faster > least:
                least, best, sure = faster, number, gained
        if not best or not self._enough(decodes, best, sure - toll):
            return None
        counts = [0] * len(offers)
        for _, _, offer in drafts[:best]:
            counts[offer] += 1
        return counts

    def _ordered(self, offers: list[Offer]) -> list[tuple[float, int, int]]:
        """(less than 0 by what it adds to the logarithm of the sequence's speed, place, offer) of
        each draft, those that add most first."""
        found: list[tuple[float, int, int]] = []
        prior = self._prior.by_place()
        for number, offer in enumerate(offers):
            tokens = 1.0
            for place, chance in enumerate(offer.drafts.chances(prior, offer.most, LEAST_CHANCE)):
                found.append((-math.log1p(chance / tokens), place, number))
                tokens += chance
        found.sort()
        return found

    def _attempt(self, offers: list[Offer], size: StepSize, left: int) -> list[int] | None:
        """A few drafts of one sequence that nothing is known of lately."""
        due = next((at for at, offer in enumerate(offers) if offer.drafts.may_try), None)
        if due is None or self._credit < RESERVE:
            return None
        counts = [0] * len(offers)
        counts[due] = min(ATTEMPT, offers[due].most, left)
        return counts

    def _may_pay(self, decodes: int) -> bool:
        """Whether drafts that are right as often as can be hoped would pay, for all sequences or
        for one of them."""
        decodes = max(decodes, 1)  # There is none in a step that computes the end of a prompt.
        found = self._paying.get(decodes)
        if found is None:
            found = any(self._pays(decodes, each) for each in range(1, FEW + 1))
            self._paying[decodes] = found
        return found

    def _pays(self, decodes: int, each: int) -> bool:
        gain = math.log(sum(SURE**place for place in range(each + 1)))
        if self._enough(decodes, each, gain):
            return True
        of_all = each * decodes
        return of_all <= self._most(decodes) and self._enough(decodes, of_all, gain * decodes)

    def _most(self, decodes: int) -> int:
        """Drafts that a step may have, given what steps were seen."""
        return max(FEW, int(WIDER * self._seconds.largest) - decodes)

    # ---- seconds

    def _slower(self, decodes: int, drafts: int) -> float:
        """The logarithm of how many times as long a step takes with so many drafts; 0.0 where no
        step's seconds are known."""
        base = self._of(decodes)
        return math.log1p(self._extra(decodes, drafts) / base) if base else 0.0

    def _enough(self, decodes: int, drafts: int, gained: float) -> bool:
        """Whether drafts save enough. gained: the sum of the logarithms of how many times as fast
        each sequence gets on where steps take no longer."""
        return gained / decodes > (1.0 + CAUTION) * self._slower(decodes, drafts) + LEAST_GAIN

    def _extra(self, decodes: int, drafts: int) -> float:
        return max(0.0, self._of(decodes + drafts) - self._of(decodes))

    def _of(self, rows: int) -> float:
        return self._seconds.of(rows, self._each)


FIRST, RENEW, BARE = 8, 64, 2
"""After FIRST steps with drafts, then twice as many each time up to RENEW, BARE steps have none:
with what these take, the others are compared."""

OTHERS = 1.25
"""How many times as many or as few sequences make it begin anew: little is known of their steps."""


class BareSteps:
    """When they are due. At first often: what steps took when requests came and prompts were
    computed may have been more than they take by themselves."""

    __slots__ = ("_decodes", "_drafted", "_every", "_left")

    def __init__(self) -> None:
        self._every = FIRST
        self._drafted = 0
        """Steps with drafts since the last without that were due; there may be others between."""
        self._left = 0  # that are due
        self._decodes = 0  # of steps that it began with

    def due(self) -> bool:
        """Whether the next step is one; then it is counted."""
        if self._drafted >= self._every:
            self._drafted, self._left = 0, BARE
            self._every = min(2 * self._every, RENEW)
        if not self._left:
            return False
        self._left -= 1
        return True

    def drafted(self, decodes: int) -> None:
        """A step of so many decodes gets drafts."""
        self._drafted += 1
        if not self._decodes / OTHERS <= decodes <= self._decodes * OTHERS:
            self._decodes, self._every = decodes, FIRST
