"""Kills and freezes processes of a real system at random moments, under streams of a fleet."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from testing.streams.fleet import Fleet

RECOVERY_BOUND = 120.0
"""Seconds after which a fleet that stands still is lost."""

LONGEST_PAUSE = 1.5
"""Seconds between a recovery and the next blow, at most."""

LONGEST_FREEZE = 5.0
"""Seconds: twice what ends a session."""

PIPES = 0.1
"""Seconds in which what was on its way before a blow still arrives."""


@dataclass(frozen=True)
class Blow:
    """Times are counted from the kill, or from the beginning of the freeze."""

    victim: str
    frozen: float  # seconds; 0: it was killed
    first: float  # seconds until some stream had gained something again
    all: float  # seconds until every stream had

    @property
    def kind(self) -> str:
        return f"{'freeze' if self.frozen else 'kill'} {self.victim}"


class Disturber:
    """pid_of: the present pid of a process, by its title; it may be missing for a moment.

    The next blow falls when every stream has moved since the recovery from the last: a request that
    is in flight at two deaths in a row, with nothing gained between them, is failed on purpose
    (the rule against poison).
    """

    def __init__(self, fleet: Fleet, pid_of: Callable[[str], int | None], seed: int) -> None:
        self._fleet = fleet
        self._pid_of = pid_of
        self._random = random.Random(seed)
        self.blows: list[Blow] = []

    async def strike_all(self, victims: Iterable[str], kills: int, freezes: int) -> None:
        """Strikes each victim in its turn while the fleet is open: so many SIGKILL, then so many
        SIGSTOP with a SIGCONT after a random while."""
        async with self._fleet:
            for victim in victims:
                for _ in range(kills):
                    await self._strike(victim, 0.0)
                for _ in range(freezes):
                    await self._strike(victim, self._random.uniform(0.1, LONGEST_FREEZE))

    async def _strike(self, victim: str, frozen: float) -> None:
        await asyncio.sleep(self._random.uniform(0, LONGEST_PAUSE))
        pid = await self._find(victim)
        os.kill(pid, signal.SIGSTOP if frozen else signal.SIGKILL)
        await asyncio.sleep(PIPES)
        position = self._fleet.position()
        waited = PIPES
        if frozen:
            await asyncio.sleep(max(0.0, frozen - PIPES))
            os.kill(pid, signal.SIGCONT)
            waited = max(frozen, PIPES)
        first = await self._fleet.wait_moved(position, 1, RECOVERY_BOUND)
        everyone = await self._fleet.wait_moved(position, len(position), RECOVERY_BOUND)
        self.blows.append(Blow(victim, frozen, waited + first, waited + first + everyone))
        # Once more, for those that began before the recovery, and so may be suspects too.
        position = self._fleet.position()
        await self._fleet.wait_moved(position, len(position), RECOVERY_BOUND)

    async def _find(self, victim: str) -> int:
        for _ in range(1000):
            pid = self._pid_of(victim)
            if pid is not None:
                return pid
            await asyncio.sleep(0.02)
        raise TimeoutError(f"there was no {victim} for 20 s")


def recoveries(blows: list[Blow]) -> str:
    """A line for each kind of blow: seconds until the first stream, and all of them, went on."""
    lines = []
    for kind in dict.fromkeys(blow.kind for blow in blows):
        these = [blow for blow in blows if blow.kind == kind]
        first, everyone = (
            spread([getattr(each, name) for each in these]) for name in ("first", "all")
        )
        lines.append(f"{kind}, {len(these)} times: first stream {first} s, all {everyone} s")
    return "\n".join(["median (longest)", *lines])


def spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} ({max(seconds):.2f})"
