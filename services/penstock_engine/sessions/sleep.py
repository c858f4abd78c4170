"""Whether the model is to sleep, and how far its workers are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from penstock.protocol.common import WAKE_TAGS, SleepLevel, WakeTag
from penstock_engine.parts import ReportsStatus, Restless

MOST_ROUSING = 600.0
"""Seconds that a model may be loaded for whom it was roused, and pass for one that takes
requests."""


class SleepState(ReportsStatus, Restless):
    """A group of workers is formed awake (by Setup) or asleep.  So a group whose state isn't the
    wanted one ends, and is formed anew; a worker that dies meanwhile comes back in the wanted
    state."""

    def __init__(self, level: SleepLevel = 0) -> None:
        self.dozes = False
        """Whether it sleeps only until there is work."""
        self.rousing_until = -math.inf
        """The time until which the model counts as being loaded because there is work for it."""
        self.level: SleepLevel = level
        """The level that is wanted; 0: awake."""
        self.group_level: SleepLevel = 0
        """The level at which the present group was formed."""
        self.waking: tuple[WakeTag, ...] = ()
        """Tags that were named since it fell asleep, and don't wake it alone."""
        self._answered: list[int] = []
        """Ranks of the present group that have given back what they held."""

    def begin(self, level: SleepLevel) -> None:
        """Sleeps from now on, at this level, or deeper if it already does: what is gone stays gone
        until it wakes."""
        self.level = max(self.level, level)
        self.waking, self.dozes = (), False

    def wake(self, tags: Sequence[WakeTag]) -> None:
        """Ends once all of WAKE_TAGS were asked for. tags: which are; none: all."""
        if not self.level:
            return
        named = (*self.waking, *(tags or WAKE_TAGS))
        self.waking = tuple(tag for tag in WAKE_TAGS if tag in named)
        if self.waking == WAKE_TAGS:
            self.level, self.waking, self.dozes = 0, (), False

    def doze(self, level: SleepLevel) -> None:
        """Sleeps until there is work. Not while it sleeps."""
        self.level, self.dozes = level, True

    def rouse(self, now: float) -> bool:
        """Wakes a model that dozes, as there is work. Returns whether it did."""
        if not self.dozes:
            return False
        self.level, self.waking, self.dozes = 0, (), False
        self.rousing_until = now + MOST_ROUSING
        return True

    def roused(self) -> None:
        """The model is loaded."""
        self.rousing_until = -math.inf

    def status(self) -> dict[str, Any]:
        """Returns the status of the sleep for front ends: fields of Status."""
        return {"sleeping": self.level, "waking": self.waking}

    @property
    def is_restless(self) -> bool:
        """Whether it sleeps, or a group is to be formed for it."""
        return self.level > 0 or self.regroups

    @property
    def noted(self) -> SleepLevel:
        """The level at which another life is to begin: one that dozed begins awake."""
        return 0 if self.dozes else self.level

    @property
    def regroups(self) -> bool:
        """Whether the present group is otherwise than is wanted."""
        return self.group_level != self.level

    def formed(self) -> None:
        """Notes that a group is being set up in the wanted state."""
        self.group_level = self.level
        self._answered.clear()

    def answered(self, rank: int) -> bool:
        """Notes that a rank sleeps. False: it wasn't asked to."""
        if not self.group_level or rank in self._answered:
            return False
        self._answered.append(rank)
        return True

    def settled(self, ranks: int, formed: bool) -> bool:
        """Whether all of so many ranks sleep as deep as is wanted. formed: whether there is a
        group."""
        everyone = formed and len(self._answered) == ranks
        return self.level > 0 and self.group_level == self.level and everyone
