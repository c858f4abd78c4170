"""Attributes the death of a worker to sequences, grammars and adapters.

Suspects are those that were in a step, compiled or loaded when a worker was lost.  That a session
has ended proves nothing yet: a worker that was frozen, or cut off, comes back with the life that it
had, and nothing is to blame.  So the loss of a session counts only once other workers have taken
the places of those that were lost.  What a worker itself reports (a fault, an impossible result),
and what fails in this process, counts at once.

A suspect runs alone until it has passed the point at which it was accused, so that the next death
accuses one sequence.  A suspect of MAX_DEATHS deaths is not run again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from penstock_engine.request.request import Sequence

MAX_DEATHS = 2
"""Engines or workers that may die while a request runs, a grammar is compiled or an adapter is
loaded; after that it is not run, compiled or loaded again."""


class Suspect(Protocol):
    """A sequence, a grammar or an adapter. deaths: number of deaths that count against it."""

    deaths: int


class FaultAttribution:
    """Decides which suspects a worker's death counts against. The engine core has one, and nothing
    else changes a suspect's deaths."""

    def __init__(self) -> None:
        self._lost: dict[int, str] = {}
        """The life of each worker that was lost and whose place is empty, by rank."""
        self._pending: list[tuple[Suspect, int]] = []
        """The suspects that the loss counts against if one of those workers is dead. The number is
        that of the tokens that a sequence would have had computed by then."""

    def accuse(self, sequences: Mapping[Sequence, int], beside: Collection[Suspect]) -> None:
        """Counts a failure of a worker, or of this engine core, against what was at work, at once.
        sequences: with the end of their tokens in the step. beside: what was compiled or loaded
        meanwhile."""
        for sequence, end in sequences.items():
            _count(sequence, end)
        for suspect in beside:
            _count(suspect, 0)

    def suspect(
        self,
        sequences: Mapping[Sequence, int],
        beside: Collection[Suspect],
        lives: Mapping[int, str],
    ) -> None:
        """Notes a loss of workers with these at work, to be counted once it is known whether one
        has died. lives: the life of each rank of the group."""
        self._lost.update(lives)
        self._pending += sequences.items()
        self._pending += [(suspect, 0) for suspect in beside]

    def arrived(self, rank: int, life: str) -> list[Suspect]:
        """Notes that a worker of this life has taken a rank's place. If it is another life, a
        worker has died, and the loss counts; if all come back with theirs, none has. Returns the
        suspects that it counts against."""
        before = self._lost.pop(rank, None)
        if before is None:
            return []
        if life and life == before:
            if not self._lost:
                self._pending.clear()
            return []
        self._lost.clear()
        accused = [suspect for suspect, end in self._pending if _count(suspect, end)]
        self._pending.clear()
        return accused

    @staticmethod
    def is_poison(suspect: Suspect) -> bool:
        """Whether a suspect is not to be run, compiled or loaded again."""
        return suspect.deaths >= MAX_DEATHS

    @staticmethod
    def passed(suspect: Suspect) -> None:
        """Clears a suspect that has got beyond the point at which it was accused."""
        suspect.deaths = 0
        if isinstance(suspect, Sequence):
            suspect.suspect_until = 0


def _count(suspect: Suspect, end: int) -> bool:
    """Counts a death against a suspect. Returns False for a sequence that has ended meanwhile,
    against which nothing counts."""
    if isinstance(suspect, Sequence):
        if suspect.finished:
            return False
        suspect.suspect_until = max(suspect.suspect_until, end, 1)
    suspect.deaths += 1
    return True
