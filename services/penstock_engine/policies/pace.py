"""How much a step may hold, so that those who decode don't wait long for their next token."""

from __future__ import annotations

import math

SHORT = 0.1
"""Seconds that a step may take in any case."""

LEAST = 16
"""Tokens that a step may have in any case beside the decodes that it is held against."""

UNKNOWN = 64
"""The same while nobody knows what prefill costs here."""

EXPLORE = 32
"""One step of so many is held to three quarters of its prefill, while `base` is uncertain."""

UNSURE = 0.25
"""Standard deviation of `base`, as a share of what the decodes alone take, that is uncertain."""

NOISE = 0.05
"""Standard deviation of a step's seconds about what is expected, as a share of them."""

DRIFT = 0.02
"""By how much base and cost of a token may change from step to step, as a share of a step."""

PRIOR = 0.1
"""Standard deviation of `base`, as a share of the first step that was seen. Little: before small
steps were seen, all of a step's time is held to be its tokens', which makes the next one short."""

LEAST_SHARE = 0.02
"""Of what a token seems to cost, what it costs in any case: a bound on steps needs some cost."""

SURPRISE = 3.0
"""Standard deviations above what was expected from which on a step of decodes alone says less: the
machine was busy with something else, and that is no reason to make steps longer. One with prefill
says as much as ever, as that makes them shorter."""


class StepPace:
    """Learns what steps cost, as seconds = base + each * tokens, and bounds them by it.

    A Kalman filter of two states (R. E. Kalman, "A New Approach to Linear Filtering and Prediction
    Problems", 1960): steps of two sizes tell base and each apart, and while steps of one size only
    come, what is known of the other size stays.

    slowdown: how many times as long as the decodes alone a step beside them may take; 0: there is
    no bound.
    """

    def __init__(self, slowdown: float = 0.0) -> None:
        self._slowdown = slowdown
        self._base = 0.0
        self._each: float | None = None
        # Covariance of (base, each).
        self._var_base = self._var_each = self._covariance = 0.0
        self._seen = 0
        # `base` by steps of decodes alone: what slows others down must not lengthen steps.
        self._quiet: float | None = None

    def observe(self, decodes: int, tokens: int, seconds: float) -> None:
        """A step was settled: `tokens` in all, `decodes` of them of sequences that had no more to
        compute. seconds: that the worker computed; 0: unknown, and not counted."""
        if seconds <= 0.0 or not tokens:
            return
        if self._each is None:
            if decodes == tokens:
                return  # Nothing is known of prefill yet.
            self._each = seconds / tokens
            self._var_base = (PRIOR * seconds) ** 2
            self._var_each = (seconds / tokens) ** 2
            self._correct(decodes, tokens, seconds, self._each)
            return
        self._seen += 1
        least = self._each / 2 if decodes == tokens else LEAST_SHARE * seconds / tokens
        if decodes == tokens:
            self._learn_quiet(max(0.0, seconds - self._each * tokens))
        self._drift(tokens, seconds)
        self._each = max(least, self._correct(decodes, tokens, seconds, self._each))

    def _learn_quiet(self, base: float) -> None:
        """Quick where it is less than was known, slow where it is more."""
        known = base if self._quiet is None else self._quiet
        self._quiet = known + (0.25 if base < known else 0.05) * (base - known)

    def _drift(self, tokens: int, seconds: float) -> None:
        """What is known gets a little less certain, but not less than one step could tell."""
        self._var_base = min(self._var_base + (DRIFT * seconds) ** 2, seconds**2)
        self._var_each = min(
            self._var_each + (DRIFT * seconds / tokens) ** 2, (seconds / tokens) ** 2
        )
        most = math.sqrt(self._var_base * self._var_each)
        self._covariance = min(max(self._covariance, -most), most)

    def _correct(self, decodes: int, tokens: int, seconds: float, each: float) -> float:
        """What the step says, weighed by how certain the rest is. Returns the new `each`."""
        expected = self._base + each * tokens
        noise = (NOISE * seconds) ** 2
        along_base = self._var_base + self._covariance * tokens
        along_each = self._covariance + self._var_each * tokens
        total = along_base + along_each * tokens + noise
        if decodes == tokens:
            surprise = (seconds - expected) / (SURPRISE * math.sqrt(total))
            total *= max(1.0, surprise) ** 2
        error = (seconds - expected) / total
        self._base = max(0.0, self._base + along_base * error)
        self._var_base -= along_base**2 / total
        self._var_each -= along_each**2 / total
        self._covariance -= along_base * along_each / total
        return each + along_each * error

    def tokens(self, decodes: int) -> float:
        """Tokens that a step with so many decodes may have in all; without decodes, any number."""
        if not decodes or not self._slowdown:
            return math.inf
        if self._each is None:
            return decodes + UNKNOWN
        base = self._base if self._quiet is None else min(self._base, self._quiet)
        alone = base + self._each * decodes
        seconds = max(SHORT, self._slowdown * alone)
        prefill = max(LEAST, (seconds - self._base) / self._each - decodes)
        # Steps of one size only would never tell what a step costs without its tokens.
        unsure = self._var_base > (UNSURE * alone) ** 2
        return decodes + (0.75 * prefill if unsure and self._seen % EXPLORE == 0 else prefill)
