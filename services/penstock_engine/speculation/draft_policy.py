"""How many tokens to draft for whom in a step: as many as make tokens come faster, by what was
learnt of drafts and of steps."""

from __future__ import annotations

import math
from typing import NamedTuple

from penstock_engine.speculation.history import ByKind, SequenceDrafts
from penstock_engine.speculation.looks import Looks
from penstock_engine.speculation.step_seconds import Slower, StepSeconds, TimedStep
from penstock_engine.speculation.upkeep import Upkeep

MAX_DRAFTS = 64
"""Most drafts of a sequence in a step, whatever a worker proposes."""

LEAST_CHANCE = 0.01
"""A draft that is right less often is not considered."""

LEAST_GAIN = 0.01
"""What drafts have to save beyond what they cost, as a share of a step."""

CAUTION = 0.25
"""How much more the time counts that is lost by sequences without drafts."""

SURE = 0.9
"""An attempt is made only where drafts would pay that are right so often."""

ATTEMPT = 2
"""Drafts where it is not known that they pay, so that it becomes known."""

SHARE = 0.006
"""Share of all steps' time that drafts may cost beyond what they save."""

MOST_CREDIT, RESERVE = 3.0, 0.25
"""In steps: what drafts may cost at a time before they have saved as much, and what of it attempts
leave to others."""

FIRST_CREDIT = 0.5
"""In steps: what they may cost of the first steps, of which nothing is known."""

TRIALS, MOST_TRIALS = 0.003, 1.0
"""Share of all steps that may be given up to learn what others cost, with more or fewer drafts than
seem best; and how many of these at a time. For those without drafts, see Looks."""

FEW, WIDER = 8, 1.25
"""Drafts that a step may have however much more it computes than any before; and how many times as
many rows as the largest one it may have."""

GLANCE, RARELY = 4, 32
"""Numbers of steps between two looks at what could be proposed: while drafts don't pay at present,
and while none would pay at the present rate of acceptance."""

LATELY = 16
"""Number of steps after the last drafts during which each step looks at what could be proposed."""

WAIT_WEIGHT = 0.1
"""Weight of the newest wait in what is known of waits."""

EPISODE = 8
"""Number of steps with drafts in a row, among which the wait before the first is shared out."""

LONGEST_HOLD = 64
"""Most steps of several passes that no proposals end, after some had ended for none."""

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
    the whole becomes faster, by more than the standard error of what they cost.  In a step with
    prefill, whose tokens have to be computed anyway, time is worth what it is in a step of decodes.
    Seconds are those from one step to the next, so that all which drafts cost is in them, wherever
    it is spent.

    It can be wrong, about chances, because texts change, and about seconds, because machines do. So
    there are accounts in steps: of what drafts cost and saved, with a small allowance; while it is
    overdrawn there are none. And of what was given up to learn what other steps cost, which is a
    small share of all.
    """

    def __init__(self) -> None:
        self._prior = ByKind()
        self._seconds = StepSeconds()
        self._credit = FIRST_CREDIT
        self._trials = FIRST_CREDIT
        """What may be given up for drafts that may not pay, and for more or fewer than seem
        best."""
        self._looks = Looks()
        self.upkeep = Upkeep()
        self._without = 0  # steps since the last with drafts
        self._paying: dict[int, bool] = {}
        """What `_may_pay` has found lately, by the number of decodes."""
        self._each = 0.0
        self._wait = 0.0
        """Seconds from one step to the next that wasn't sent ahead."""
        self._ended_early = False  # the latest step, for proposals
        self._holds = self._hold = 0
        """Steps of several passes that no proposals are to end, as some had ended for none: at the
        latest time, and those that are left."""

    def undrafted(self, drafts: SequenceDrafts, guessed: bool | None) -> None:
        """A sequence's token came without drafts."""
        drafts.undrafted(guessed)
        if guessed is not None:
            self._prior.guessed(drafts.kind, right=guessed)

    def observe(self, drafts: SequenceDrafts, drafted: int, kept: int) -> None:
        """A sequence's token came, and of so many drafts after it the first `kept` were right."""
        drafts.observe(drafted, kept)
        self._prior.observe(drafts.kind, drafted, kept)

    def waited(self, seconds: float, *, early: bool = False) -> None:
        """The worker has had nothing to do for so long before a step that goes on by itself. early:
        proposals have ended it."""
        self._wait += WAIT_WEIGHT * (seconds - self._wait)
        self._ended_early = early

    def settled(
        self,
        size: StepSize,
        drafted: int,
        kept: int,
        seconds: float,
        *,
        each: float,
        passes: int = 1,
        alone: bool = True,
        upkeep: float = 0.0,
        sequences: int = 0,
    ) -> None:
        """A step was settled, with so many drafts, of which some were right. seconds: of a pass,
        since the step before; each: seconds of a further token of prefill, as far as known; alone:
        it was planned for a single pass; upkeep: further seconds of a pass, in which a head kept up
        with sequences that it drafted nothing for; sequences: of the step, if not all are
        decodes."""
        self._each = each
        self._looks.settled(drafted)
        if seconds <= 0.0:
            return
        self._without = 0 if drafted else self._without + passes
        if self._without % GLANCE < passes:
            self._paying.clear()
        gain, decodes = 0.0, max(size.decodes, 1)
        if drafted:
            longer = math.exp(self._seconds.slower(decodes, drafted, each).log)
            # Between shares of this step and of one without drafts: luck weighs less in the former,
            # and what is lost in the latter.
            gain = (1.0 + kept / decodes - longer) / math.sqrt(longer)
        self._credit = min(MOST_CREDIT, self._credit + SHARE * passes + gain)
        cost = 0.0
        if upkeep:
            # Of a step with prefill, whose rows a head computes too, it is a share of its own time.
            base = seconds if size.prefill else self.seconds(decodes)
            cost = upkeep * passes / base if base else 0.0
        self.upkeep.settled(sequences or decodes, gain, cost, passes)
        self._trials = min(MOST_TRIALS, self._trials + TRIALS * passes)
        if not size.prefill:
            self._seconds.observe(TimedStep(size.decodes, drafted, alone), seconds, each)

    def seconds(self, decodes: int) -> float:
        """What a step of so many decodes takes, from the one before; 0.0: none was seen."""
        return self._seconds.of(decodes, self._each)

    @property
    def looking(self) -> bool:
        """Whether steps are to have no drafts for now, to show what they take without."""
        return self._looks.going_on

    def wants_proposed(self, decodes: int) -> bool:
        """Whether the worker is to look up what it could propose after a step of so many decodes.
        It takes time, too."""
        if self._without < LATELY:
            return True
        return self._without % (GLANCE if self._may_pay(decodes) else RARELY) == 0

    def choose(self, offers: list[Offer], size: StepSize, left: int) -> list[int]:
        """Drafts for each offer. left: that the step has room for."""
        chosen = self._chosen(offers, size, left)
        if any(chosen):
            self._looks.drafted(size.decodes)
            self._holds, self._ended_early = 0, False
        return chosen

    def _chosen(self, offers: list[Offer], size: StepSize, left: int) -> list[int]:
        none = [0] * len(offers)
        if self._credit < 0.0 or self.looking or not self._may_pay(size.decodes):
            return none
        left = min(left, self._most(size.decodes))
        found = self._found(offers, size, left, self._toll(size) if self._without else 0.0)
        number = found.best
        if number:
            if self._looks.due(size.decodes, found.gain, found.error):
                return none
        elif self._credit < RESERVE:
            return none
        if found.trial and self._trials >= found.loss:
            self._trials -= found.loss
            number = found.trial
        if not number:
            return self._attempt(offers, size, left)
        counts = [0] * len(offers)
        for _, _, offer in found.drafts[:number]:
            counts[offer] += 1
        return counts

    def least_proposed(self, sequences: list[SequenceDrafts], size: StepSize, left: int) -> int:
        """Drafts that could be proposed, for all these together, so that some would be chosen; 0:
        no number of them would. left: that a step has room for."""
        if self._ended_early:  # And yet nothing was drafted after it.
            self._ended_early = False
            self._hold = self._holds = min(2 * self._holds + 1, LONGEST_HOLD)
        if self._hold:
            self._hold -= 1
            return 0
        if self._credit < 0.0 or self.looking or not sequences or not self._may_pay(size.decodes):
            return 0
        left = min(left, self._most(size.decodes))
        # The step ends early, so that there is one more for all to wait for.
        base = self._seconds.of(size.decodes, self._each)
        toll = math.log1p(self._wait / base) if base else 0.0
        priors = {kind: self._prior.of(kind) for kind in {each.kind for each in sequences}}
        best = max(sequences, key=lambda each: sum(each.chances(priors[each.kind], FEW)))
        for most in PROPOSALS:
            if self._found([Offer(best, most)], size, left, toll).best:
                return most
            if self._found([Offer(drafts, most) for drafts in sequences], size, left, toll).best:
                return most * len(sequences)
        return 0

    def _toll(self, size: StepSize) -> float:
        """What it costs to begin with drafts, in each of the steps that have some."""
        base = self._seconds.of(size.decodes, self._each)
        return math.log1p(self._wait / base) / EPISODE if base else 0.0

    def _found(self, offers: list[Offer], size: StepSize, left: int, toll: float) -> Judgement:
        """What makes sequences get on fastest. toll: the logarithm of how many times as long the
        step takes because there are any."""
        decodes = max(size.decodes, 1)
        drafts = self._ordered(offers)[:left]
        least = LEAST_GAIN + toll
        seen: list[tuple[int, float, Slower]] = []
        gained = 0.0
        looked_at = faster = 0
        for number, (more, place, _) in enumerate(drafts, 1):
            gained -= more
            faster += not place
            if number < len(drafts) and 8 * (number - looked_at) < number:
                continue  # Of many drafts each number isn't looked at.
            looked_at = number
            slower = self._seconds.slower(decodes, number, self._each)
            cost = slower.log * (1.0 + CAUTION * max(0, decodes - faster) / decodes)
            seen.append((number, gained / decodes - cost - least, slower))
        return _judged(drafts, seen)

    def _ordered(self, offers: list[Offer]) -> list[tuple[float, int, int]]:
        """(less than 0 by what it adds to the logarithm of the sequence's speed, place, offer) of
        each draft, those that add most first."""
        found: list[tuple[float, int, int]] = []
        priors: dict[bytes, list[float]] = {}
        for number, offer in enumerate(offers):
            kind = offer.drafts.kind
            if kind not in priors:
                priors[kind] = self._prior.of(kind)
            tokens, prior = 1.0, priors[kind]
            for place, chance in enumerate(offer.drafts.chances(prior, offer.most, LEAST_CHANCE)):
                found.append((-math.log1p(chance / tokens), place, number))
                tokens += chance
        found.sort()
        return found

    def _attempt(self, offers: list[Offer], size: StepSize, left: int) -> list[int]:
        """A few drafts of one sequence that nothing is known of lately."""
        counts = [0] * len(offers)
        due = next((at for at, offer in enumerate(offers) if offer.drafts.may_try), None)
        if due is None or self._credit < RESERVE:
            return counts
        if not self._looks.due(size.decodes, 0.0, 1.0):
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
        if self._hopeful(decodes, each, gain / decodes):
            return True
        return each * decodes <= self._most(decodes) and self._hopeful(
            decodes, each * decodes, gain
        )

    def _hopeful(self, decodes: int, drafts: int, gain: float) -> bool:
        slower = self._seconds.slower(decodes, drafts, self._each)
        return gain > slower.log - slower.error + LEAST_GAIN

    def _most(self, decodes: int) -> int:
        """Drafts that a step may have, given what steps were seen."""
        return max(FEW, int(WIDER * self._seconds.largest) - decodes)


class Judgement(NamedTuple):
    """Drafts by what they add, and how many of them. best: that pay for sure; 0: none do. gain: the
    logarithm of how many times as fast sequences get on with these. error: of that. trial: that may
    pay better, by what is known; 0: none may. loss: what these may cost, compared with the best."""

    drafts: list[tuple[float, int, int]]
    best: int
    gain: float
    error: float
    trial: int
    loss: float


def _judged(
    drafts: list[tuple[float, int, int]], seen: list[tuple[int, float, Slower]]
) -> Judgement:
    """seen: numbers of drafts, what each gains net, and how well that is known."""
    if not seen:
        return Judgement(drafts, 0, 0.0, 0.0, 0, 0.0)
    sure = [each for each in seen if each[1] > each[2].error]
    if sure:
        best, gain, known = max(sure, key=lambda each: each[1])
        others = [each for each in seen if each[0] != best]
        if others:
            trial, net, slower = max(others, key=lambda each: each[1] + each[2].own)
            if net + slower.own > gain + 0.5 * known.own:
                return Judgement(drafts, best, gain, known.error, trial, gain - net)
        return Judgement(drafts, best, gain, known.error, 0, 0.0)
    trial, net, slower = max(seen, key=lambda each: each[1])
    if net + slower.error <= 0.0:
        return Judgement(drafts, 0, 0.0, 0.0, 0, 0.0)
    return Judgement(drafts, 0, 0.0, slower.error, trial, slower.error - net)
