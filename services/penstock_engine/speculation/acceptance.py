"""How often drafted tokens turn out right, by their place in the draft."""

from __future__ import annotations

PLACES = 8
"""Places that are told apart; the last stands for all behind it, too."""


class Acceptance:
    """Of each place, how often a draft there was right where those before it were. Counts with
    exponential decay, by observation; what nobody has seen is as `first` says."""

    __slots__ = ("_fade", "_kept", "_tried")

    def __init__(self, fade: float, first: float = 0.0, weight: float = 0.0) -> None:
        """fade: of older observations.  first: the chance that is assumed, as if it had been seen
        `weight` times."""
        self._fade = fade
        self._tried = [weight] * PLACES
        self._kept = [weight * first] * PLACES

    def observe(self, drafted: int, kept: int) -> None:
        """Of so many drafts the first `kept` were right."""
        for place in range(min(drafted, kept + 1)):
            self._count(min(place, PLACES - 1), right=place < kept)

    def guessed(self, *, right: bool) -> None:
        """Whether the first draft would have been right, had there been one."""
        self._count(0, right=right)

    def _count(self, place: int, *, right: bool) -> None:
        self._tried[place] = self._tried[place] * self._fade + 1.0
        self._kept[place] = self._kept[place] * self._fade + right

    def chance(self, place: int, prior: float, weight: float) -> float:
        """That a draft there is right, if those before it are. prior: assumed chance, as if it had
        been seen `weight` times."""
        at = min(place, PLACES - 1)
        return (self._kept[at] + prior * weight) / (self._tried[at] + weight)

    def alone(self, place: int) -> float:
        """The same by what was seen here alone, of which there is some."""
        return self.chance(place, 0.0, 0.0)
