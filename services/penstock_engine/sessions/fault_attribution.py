"""Who may have been the death of a worker, and who was not.

Suspected is only what was in a step, compiled or loaded when a worker was lost.  A session that
ends says nothing yet: a worker that was frozen, or cut off, comes back with the life that it had,
and nobody is to blame.  So what the loss of a session counts is settled when the places of those
that were lost are taken again; what a worker itself reports (a fault, a result that can't be), and
what fails here, counts at once.

A suspect runs alone until it has passed the point at which it was accused, so that the next death
accuses one.  Whoever has seen MAX_DEATHS is not run again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from penstock_engine.request.request import Sequence

MAX_DEATHS = 2
"""Engines or workers that may die while a request runs, a grammar is compiled or an adapter is
loaded; after that it is not run, compiled or loaded again."""


class Suspect(Protocol):
    """A sequence, a grammar or an adapter. deaths: that count against it."""

    deaths: int


class FaultAttribution:
    """Whom a worker's death counts against. The engine core has one, and nothing else changes a
    suspect's deaths."""

    def __init__(self) -> None:
        self._lost: dict[int, str] = {}
        """The life of each worker that was lost and whose place is empty, by rank."""
        self._pending: list[tuple[Suspect, int]] = []
        """Whom the loss counts against if one of those is dead, with the number of tokens that a
        sequence would have had computed by then."""

    def accuse(self, sequences: Mapping[Sequence, int], beside: Collection[Suspect]) -> None:
        """A worker, or this engine core, has failed with these at work: it counts at once. beside:
        what was compiled or loaded."""
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
        """Workers were lost with these at work. lives: of all ranks of the group."""
        self._lost.update(lives)
        self._pending += sequences.items()
        self._pending += [(suspect, 0) for suspect in beside]

    def arrived(self, rank: int, life: str) -> list[Suspect]:
        """A rank's place is taken, by a worker of this life. Once all are back it is known whether
        one of them had died; at once, where this one has. Returns whom that counts against."""
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
        """Whether it is not to be run, compiled or loaded again."""
        return suspect.deaths >= MAX_DEATHS

    @staticmethod
    def passed(suspect: Suspect) -> None:
        """Clears a suspect that has got beyond the point at which it was accused."""
        suspect.deaths = 0
        if isinstance(suspect, Sequence):
            suspect.suspect_until = 0


def _count(suspect: Suspect, end: int) -> bool:
    """Whether it is still to be run: what has ended meanwhile is nobody's business."""
    if isinstance(suspect, Sequence):
        if suspect.finished:
            return False
        suspect.suspect_until = max(suspect.suspect_until, end, 1)
    suspect.deaths += 1
    return True
