"""The processes of a front end that prepare its media."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field

from penstock.errors import Overloaded, RequestFailed
from penstock.media.process import MediaProcess
from penstock.media.turns import Turns
from penstock.media.wire import Answer, Prepare, ProcessBounds
from penstock.process import logs
from penstock.process.isolated import STANDSTILL, Crashed, Died, Frozen, Stalled

log = logs.get(__name__)

ATTEMPTS = 3
"""Processes that an item gets when they die under it, for no fault of its own."""


class Unpreparable(Exception):
    """An item can't be prepared, by its own fault; says why, to follow "the picture"."""


@dataclass(slots=True)
class PoolCounts:
    """What the processes did."""

    items: int = 0
    """Items prepared."""
    refused: int = 0
    seconds: float = 0.0
    """Seconds of the clock, for all items that came to a process."""
    ended: int = 0
    """Processes that an item brought down, or that were stopped under one."""


@dataclass(slots=True)
class MediaPool:
    """Up to `most` processes, each started when an item needs it. Belongs to one event loop."""

    bounds: ProcessBounds
    most: int
    counts: PoolCounts = field(default_factory=PoolCounts)
    _idle: list[MediaProcess] = field(default_factory=list)
    _busy: set[MediaProcess] = field(default_factory=set)
    _closed: bool = False
    _owner: int = field(default_factory=os.getpid)
    _turns: Turns = field(init=False)

    def __post_init__(self) -> None:
        self._turns = Turns(self.most)

    @property
    def pids(self) -> list[int]:
        """Ids of all processes."""
        return [process.pid for process in (*self._idle, *self._busy)]

    async def prepare(self, task: Prepare, tenant: str = "") -> Answer:
        """The prepared item, when it is this tenant's turn. Raises Unpreparable; Limited where too
        many of the tenant's wait; Overloaded or RequestFailed where no process can be had."""
        clock = asyncio.get_running_loop().time
        await self._turns.take(tenant)
        begun = clock()
        try:
            answer = await self._ask(task)
        except Unpreparable:
            self.counts.refused += 1
            raise
        finally:
            self.counts.seconds += clock() - begun
            self._turns.give()
        self.counts.items += 1
        return answer

    def close(self) -> None:
        """Ends all processes; what they were at fails. Idempotent."""
        self._closed = True
        for process in (*self._idle, *self._busy):
            if self._owner == os.getpid():
                process.close()
            else:
                process.abandon()
        self._idle.clear()
        self._busy.clear()

    async def _ask(self, task: Prepare) -> Answer:
        for _ in range(ATTEMPTS):
            process = self._take()
            try:
                answer = await process.ask(task)
            except Died:
                await self._drop(process)
                continue
            except Stalled:
                await self._drop(process)
                raise self._blamed(f"takes longer than {self.bounds.cpu:g} s to prepare") from None
            except Frozen:
                await self._drop(process)
                log.error("a media process stood still and was replaced", seconds=STANDSTILL)
                raise Overloaded(
                    "the process that prepares media stood still, and was replaced", retry_after=1.0
                ) from None
            except Crashed:
                await self._drop(process)
                raise self._blamed("brought down the process that decoded it") from None
            except BaseException:
                await self._drop(process)
                raise
            return await self._settled(process, answer)
        log.error("media processes die", attempts=ATTEMPTS)
        raise RequestFailed("the process that prepares media died, and so did the next ones")

    async def _settled(self, process: MediaProcess, answer: Answer) -> Answer:
        if answer.leaving or answer.outcome == "memory":
            await self._drop(process)
        else:
            self._busy.discard(process)
            self._idle.append(process)
        if answer.outcome == "memory":
            raise self._blamed("needs more memory to prepare than it may have")
        if answer.outcome == "refused":
            raise Unpreparable(answer.reason)
        return answer

    def _blamed(self, reason: str) -> Unpreparable:
        self.counts.ended += 1
        log.warning("a media item crashed its process", reason=reason)
        return Unpreparable(reason)

    def _take(self) -> MediaProcess:
        if self._closed:
            raise Overloaded("no media are prepared any more: the server leaves", retry_after=1.0)
        try:
            process = self._living() or MediaProcess(self.bounds)
        except OSError as error:
            log.error("a media process can't be started", reason=str(error))
            raise Overloaded(
                "a process that prepares media can't be started", retry_after=1.0
            ) from None
        self._busy.add(process)
        return process

    def _living(self) -> MediaProcess | None:
        """An idle process; those that somebody has killed go."""
        while self._idle:
            process = self._idle.pop()
            if process.alive:
                return process
            process.close()
        return None

    async def _drop(self, process: MediaProcess) -> None:
        self._busy.discard(process)
        await process.end()
