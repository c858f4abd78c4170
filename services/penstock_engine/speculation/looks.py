"""When steps are to have no drafts for once, to show what they take without."""

from __future__ import annotations

import math
from dataclasses import dataclass

LEAST_BETWEEN, MOST_BETWEEN = 4, 512
"""Numbers of steps with drafts between two looks at steps without any."""

VAGUE, VAGUE_BETWEEN = 3.0, 16
"""While drafts gain less than VAGUE standard errors, there are at most VAGUE_BETWEEN steps with
drafts between two looks."""

STEPS = 2
"""Steps of a look: the first comes after one with drafts, and only later ones may be planned as
they are where nothing is drafted."""

PASSES = 5
"""The most passes of such steps, where the worker goes on by itself."""

PATIENCE = 8
"""Steps with drafts that a look waits for steps without any: those that were planned before it, and
those of claimed outputs, which have drafts in any case."""

SHARE = 0.003
"""Share of all steps that looks may cost where drafts pay."""


@dataclass
class _Size:
    """What is known of looks at steps of about the same number of decodes."""

    between: int = LEAST_BETWEEN
    since: int = 0  # Steps with drafts since the latest.


class Looks:
    """At first there are many, as steps may have been slow for another reason, and while what
    drafts gain may be nothing; then as many as a small share of all steps allows. Each size of a
    batch has its own: what small ones take says little of large ones."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        self._left = 0  # Steps without drafts that the present look still waits for.
        self._waited = 0  # Steps with drafts since it began.

    @property
    def going_on(self) -> bool:
        return self._left > 0

    def drafted(self, decodes: int) -> None:
        """A step of so many decodes was planned with drafts."""
        self._size(decodes).since += 1

    def settled(self, drafted: int) -> None:
        """A step was settled, with so many drafts."""
        if self._left and not drafted:
            self._left -= 1
        elif self._left:
            self._waited += 1
            if self._waited >= PATIENCE:
                self._left = 0

    def due(self, decodes: int, gain: float, error: float) -> bool:
        """Whether a look begins with the step that is planned, which could have drafts. gain: the
        logarithm of how many times as fast sequences get on with them. error: of that."""
        size = self._size(decodes)
        often = -math.expm1(-gain) * PASSES / SHARE if gain > 0.0 else MOST_BETWEEN
        if size.since >= min(size.between, often):
            size.since = 0
            self._begin(STEPS)
            size.between = min(2 * size.between, MOST_BETWEEN)
            return True
        if gain < VAGUE * error and size.since >= VAGUE_BETWEEN and not size.since % VAGUE_BETWEEN:
            self._begin(1)
            size.since += 1  # It comes once.
            return True
        return False

    def _begin(self, steps: int) -> None:
        self._left, self._waited = steps, 0

    def _size(self, decodes: int) -> _Size:
        return self._sizes.setdefault(decodes.bit_length(), _Size())
