"""How much a step may hold, so that those who decode don't wait long for their next token."""

from __future__ import annotations

import math

from penstock.config.settings import SchedulerSettings

SHORT = 0.05
"""Seconds that a step may take in any case, if a setting says nothing else."""

MEDIA_ALONE = 0.1
"""Seconds that media may be encoded in any case in a step that nobody decodes in."""

ASIDE = 0.005
"""Seconds that media may be encoded in any case in a step that somebody decodes in."""

LONG = 0.25
"""Seconds that a step without decodes may take: a request that arrives during one waits for its
end."""

GROWTH = 8
"""Factor by which a step without decodes may have more tokens than the last one had: what a few
tokens cost says little of thousands, some of which may have log-probabilities to compute."""

ORDINARY = 1024
"""Tokens that a step without decodes may have whatever the last one had: few prompts are longer."""

LEAST = 16
"""Prefill tokens that a step may always hold in addition to the decodes that limit it."""

UNKNOWN = 64
"""Prefill tokens that a step may hold in addition to the decodes until the cost of prefill is
known."""

WEIGHT = 0.25
"""Weight of the newest step in what is known."""

DEARER = 1.0
"""Weight of a step of UNKNOWN tokens or more, each of which cost more than known: the next one
would take as long as that."""

SLOWER = 0.05
"""Weight of a step of decodes alone that took longer than known: whatever else the machine was busy
with is no reason to make steps longer yet."""

LEAST_SHARE = 0.02
"""Share of a step's seconds that its prefill costs in any case: a bound on steps needs some cost.
"""

FIND, RENEW = 4, 64
"""Numbers of steps with prefill after which one step has decodes only, to measure what these take:
at first, and later."""


class StepPace:
    """Learns what decodes alone take, and what each prefill token adds; bounds steps by it.

    A prompt's tokens are dear only by what a step takes longer than the decodes alone.  Where
    prompts wait all the time, no such step comes by itself; so now and then one is made.

    slowdown: how many times as long as the decodes alone a mixed step may take; 0: there is no
    bound.  short: seconds that it may take in any case.
    """

    def __init__(self, slowdown: float = 0.0, short: float = SHORT) -> None:
        self._slowdown = slowdown
        self._short = short
        # The newest steps of decodes alone, blended; 0 seconds: there was none.
        self._tokens = self._seconds = 0.0
        self._each: float | None = None  # seconds of a further token
        self._with_prefill = 0  # steps since the last of decodes alone
        self._last_alone = UNKNOWN  # tokens of the last step without decodes

    def observe(self, decodes: int, tokens: int, seconds: float) -> None:
        """A step was settled: `tokens` in all, `decodes` of them of sequences that had no more to
        compute. seconds: that the worker computed; 0: unknown, and not counted."""
        if seconds <= 0.0 or not tokens:
            return
        if decodes == tokens:
            self._learn_alone(tokens, seconds)
            return
        self._with_prefill += 1
        prefill = tokens - decodes
        if prefill >= LEAST // 2:
            # Where decodes alone took as long as this, they were slow for another reason.
            each = max(seconds - self._alone(decodes), LEAST_SHARE * seconds) / prefill
            known = each if self._each is None else self._each
            dearer = each > known and prefill >= UNKNOWN
            self._each = _blend(known, each, DEARER if dearer else WEIGHT)
            if not decodes:
                self._last_alone = prefill

    def _learn_alone(self, tokens: int, seconds: float) -> None:
        self._with_prefill = 0
        known = self._seconds > 0.0
        weight = (WEIGHT if seconds < self._alone(tokens) else SLOWER) if known else 1.0
        self._tokens = _blend(self._tokens, tokens, weight)
        self._seconds = _blend(self._seconds, seconds, weight)

    def _alone(self, decodes: int) -> float:
        """Seconds that so many decodes would take alone: what is known of another number, and not
        all of it is in proportion to the number.  A decode costs less than a prompt's token may,
        whose sequence is longer."""
        if not self._seconds:
            return 0.0
        in_proportion = self._seconds * decodes / self._tokens
        by_each = self._seconds + (self._each or 0.0) * (decodes - self._tokens)
        if decodes < self._tokens:
            return max(in_proportion, by_each)
        return min(in_proportion, by_each)

    def tokens(self, decodes: int) -> float:
        """Tokens that a step with so many decodes may have in all."""
        if not self._slowdown:
            return math.inf
        if self._each is None:
            return decodes + UNKNOWN if decodes else math.inf
        if not decodes:
            return max(UNKNOWN, min(LONG / self._each, max(ORDINARY, GROWTH * self._last_alone)))
        every = RENEW if self._seconds else FIND
        if self._with_prefill and self._with_prefill % every == 0:
            return decodes
        alone = self._alone(decodes)
        spare = max(self._short, self._slowdown * alone) - alone
        return decodes + max(LEAST, spare / self._each)

    def aside(self, decodes: int) -> float:
        """Seconds that a step with so many decodes may take for what are no tokens, and what
        another step can go on with."""
        if not self._slowdown:
            return math.inf
        if not decodes:
            return max(MEDIA_ALONE, self._short)
        return max(min(ASIDE, self._short), (self._slowdown - 1.0) * self._alone(decodes))


def pace_of(settings: SchedulerSettings) -> StepPace:
    """A StepPace that has measured nothing yet."""
    return StepPace(settings.max_step_slowdown, 0.001 * settings.short_step_ms)


def _blend(known: float, new: float, weight: float) -> float:
    return known + weight * (new - known)
