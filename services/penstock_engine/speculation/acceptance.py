"""How often drafted tokens turn out right, by their place in the draft."""

from __future__ import annotations

from collections.abc import Sequence

PLACES = 8
"""Places that are told apart; the last stands for all after it, too."""


class Acceptance:
    """How often a draft at each place was right where those before it were. Counts with exponential
    decay, by observation; what nobody has seen is as `first` says."""

    __slots__ = ("_fade", "_kept", "_tried")

    def __init__(self, fade: float, first: float = 0.0, weight: float = 0.0) -> None:
        """fade: of older observations.  first: the chance that is assumed, as if it had been seen
        `weight` times."""
        self._fade = fade
        self._tried = [weight] * PLACES
        self._kept = [weight * first] * PLACES

    def observe(self, drafted: int, kept: int) -> None:
        """Counts that of so many drafts the first `kept` were right."""
        for place in range(min(drafted, kept + 1)):
            self._count(min(place, PLACES - 1), right=place < kept)

    def guessed(self, *, right: bool) -> None:
        """Whether the first draft would have been right, had there been one."""
        self._count(0, right=right)

    def _count(self, place: int, *, right: bool) -> None:
        self._tried[place] = self._tried[place] * self._fade + 1.0
        self._kept[place] = self._kept[place] * self._fade + right

    def by_place(self) -> list[float]:
        """The chance at each place that a draft there is right, if those before it are. There have
        to be observations, or a chance that is assumed."""
        return [kept / tried for kept, tried in zip(self._kept, self._tried, strict=True)]

    def chances(
        self, prior: Sequence[float], weight: float, most: int, least: float = 0.0
    ) -> list[float]:
        """For each of so many drafts the chance that it and all before it are right, up to the
        first where that is less than `least`. prior: chances by place (see `by_place`), as if each
        had been seen `weight` times."""
        tried, kept = self._tried, self._kept
        found: list[float] = []
        chance, at = 1.0, 0
        while len(found) < most:
            chance *= (kept[at] + prior[at] * weight) / (tried[at] + weight)
            if chance < least:
                break
            found.append(chance)
            at = min(at + 1, PLACES - 1)
        return found
