"""The processes of a front end that prepare its media."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from dataclasses import dataclass, field

import msgspec

from penstock.errors import Limited, Overloaded, RequestFailed
from penstock.media.wire import MAX_FRAME, Answer, Prepare, ProcessBounds
from penstock.process import logs
from penstock.process.isolated import STANDSTILL, Crashed, Died, Frozen, IsolatedProcess, Stalled
from penstock.process.isolated_child import HEADER
from penstock.request.tenant_places import TenantPlaces, any_free

MAX_WAITING = 16_384
"""Items that wait in a front end."""
MAX_OF_TENANT = 2_048
"""Items of one tenant that wait in a front end."""
RETRY_AFTER = 1.0
"""Seconds."""


LARGE = 1 << 20
"""Bytes of an item from which on a thread receives it."""

_ANSWER = msgspec.msgpack.Decoder(Answer)


class MediaProcess(IsolatedProcess):
    """Works in one event loop."""

    def __init__(self, bounds: ProcessBounds) -> None:
        super().__init__(
            "penstock.media.child",
            (
                "numpy",
                "PIL",
                "soundfile",
                "_cffi_backend",
                "cffi",
                "pycparser",
                "soxr",
                "av",
                "pypdf",
            ),
            msgspec.json.encode(bounds),
            # What it writes there are words of a decoder about a stranger's bytes.
            stderr=subprocess.DEVNULL,
            environment=_environment(),
        )
        self._bounds = bounds
        self._socket.setblocking(False)

    async def ask(self, task: Prepare) -> Answer:
        """Prepares an item. Raises Stalled, Frozen, Crashed or Died."""
        payload = msgspec.msgpack.encode(task)
        try:
            async with self._bounded(self._bounds.cpu):
                await self._send(payload)
                answer = await self._answer()
        except msgspec.DecodeError:
            raise Crashed from None
        except (OSError, EOFError):
            raise await asyncio.to_thread(self._reason) from None
        return answer

    async def _answer(self) -> Answer:
        (size,) = HEADER.unpack(await self._receive(HEADER.size))
        if size > MAX_FRAME:
            raise Crashed
        answer = _ANSWER.decode(await self._receive(size))
        if not 0 <= answer.follows <= MAX_FRAME:
            raise Crashed
        if answer.follows < LARGE:
            data = bytes(await self._receive(answer.follows))
        else:
            # Megabytes are neither copied nor filled with zeros by who holds the interpreter.
            self._socket.setblocking(True)
            data = await asyncio.to_thread(self._receive_all, answer.follows)
            self._socket.setblocking(False)
        return msgspec.structs.replace(answer, data=data, follows=0)

    def _receive_all(self, size: int) -> bytes:
        """Blocks; ends when the process does."""
        parts: list[bytes] = []
        while size:
            part = self._socket.recv(size, socket.MSG_WAITALL)
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _environment() -> dict[str, str]:
    """None of ours, which may hold keys. One thread for NumPy: others would take address space."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PATH") if name in os.environ}
    return {**kept, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


log = logs.get(__name__)

ATTEMPTS = 3
"""Processes that an item gets when they die under it, for no fault of its own."""


class Unpreparable(Exception):
    """An item can't be prepared, by its own fault; says why, to follow "the picture"."""


SPARE_SECONDS = 30.0
"""Seconds after which a process is ended that has had nothing to do, if there is another one."""


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
    """Up to `most` processes, each started when an item needs it, and ended when it has had nothing
    to do for a while and isn't the only one. Belongs to one event loop."""

    bounds: ProcessBounds
    most: int
    counts: PoolCounts = field(default_factory=PoolCounts)
    _idle: list[tuple[MediaProcess, float]] = field(default_factory=list)
    """Each with the loop's time since when; the next item goes to the last one."""
    _busy: set[MediaProcess] = field(default_factory=set)
    _ending: set[asyncio.Task[None]] = field(default_factory=set)
    _look: asyncio.TimerHandle | None = None
    _closed: bool = False
    _owner: int = field(default_factory=os.getpid)
    _turns: TenantPlaces = field(init=False)

    def __post_init__(self) -> None:
        self._turns = TenantPlaces(self.most, any_free)

    @property
    def pids(self) -> list[int]:
        """Ids of all processes."""
        return [process.pid for process in self._all()]

    def _all(self) -> list[MediaProcess]:
        return [*(process for process, _ in self._idle), *self._busy]

    async def prepare(self, task: Prepare, tenant: str = "") -> Answer:
        """The prepared item, when it is this tenant's turn. Raises Unpreparable; Limited where too
        many of the tenant's wait; Overloaded or RequestFailed where no process can be had."""
        clock = asyncio.get_running_loop().time
        await self._enter(tenant)
        begun = clock()
        try:
            answer = await self._ask(task)
        except Unpreparable:
            self.counts.refused += 1
            raise
        finally:
            self.counts.seconds += clock() - begun
            self._turns.leave(tenant)
        self.counts.items += 1
        return answer

    async def _enter(self, tenant: str) -> None:
        """Returns when it is the tenant's turn. Raises Limited or Overloaded where too many
        wait."""
        if self._turns.take(tenant):
            return
        if self._turns.waiting_of(tenant) >= MAX_OF_TENANT:
            raise Limited(
                f"{MAX_OF_TENANT} media items of this tenant are waiting to be prepared, the most "
                "allowed",
                retry_after=RETRY_AFTER,
            )
        if (waiting := self._turns.waiting) >= MAX_WAITING:
            raise Overloaded(
                f"{waiting} media items are waiting to be prepared, the most allowed",
                retry_after=RETRY_AFTER,
            )
        await self._turns.enter(tenant)

    def close(self) -> None:
        """Ends all processes; what they were at fails. Idempotent."""
        self._closed = True
        if self._look is not None:
            self._look.cancel()
        for process in self._all():
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
            self._lay_aside(process)
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
            process, _ = self._idle.pop()
            if process.alive:
                return process
            process.close()
        return None

    async def _drop(self, process: MediaProcess) -> None:
        self._busy.discard(process)
        await process.end()

    def _lay_aside(self, process: MediaProcess) -> None:
        loop = asyncio.get_running_loop()
        self._idle.append((process, loop.time()))
        if self._look is None and len(self._idle) > 1 and not self._closed:
            self._look = loop.call_later(SPARE_SECONDS, self._end_spare)

    def _end_spare(self) -> None:
        """Ends those that have been idle for long, but for the one that was busy last."""
        loop = asyncio.get_running_loop()
        self._look = None
        while len(self._idle) > 1 and loop.time() - self._idle[0][1] >= SPARE_SECONDS:
            ending = loop.create_task(self._idle.pop(0)[0].end())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)
        if len(self._idle) > 1:
            self._look = loop.call_at(self._idle[0][1] + SPARE_SECONDS, self._end_spare)
