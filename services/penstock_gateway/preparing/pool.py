"""A gateway's preparers: how many there are, and whose turn it is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from penstock.errors import Overloaded
from penstock.process import logs
from penstock.request.tenant_places import TenantPlace, TenantPlaces, fewer_than_free, one_each
from penstock_gateway.preparing.forks import PreparerForks, PreparerWork
from penstock_gateway.preparing.process import PreparerProcess

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


log = logs.get(__name__)

MOST = 64
"""Processes at a time. Most of them wait: for a picture to be fetched, a model to be started."""
IDLE = 2
"""Processes that are kept for the next bodies."""


Outcome = Literal["done", "too_dear", "out_of_memory", "crashed", "died", "frozen"]
"""What became of a body that a process was given: it has answered, if only with an error; it took
more processor time than it may, or more memory; it crashed; it was killed; it stood still."""


def at_a_time() -> int:
    """Bodies that are worked on at a time: a half of the processors, so that tokens go on, at least
    two."""
    return max(2, len(os.sched_getaffinity(0)) // 2)


class Elsewhere(Protocol):
    """Answers a request whose body was read. Raises the body's errors."""

    async def __call__(
        self, endpoint: Any, scope: Scope, body: bytes, receive: Receive, send: Send
    ) -> None: ...


def nobody() -> PreparerWork:
    """What preparers do before they are connected."""
    raise RuntimeError("preparers that weren't connected are wanted")


async def nowhere(endpoint: Any, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
    """The answer before they are connected."""
    nobody()


class Preparers:
    """Belongs to one event loop.

    served: what preparers depend on that may change; they are forked anew when any of it is another
    object.
    """

    def __init__(self, served: Callable[[], tuple[object, ...]]) -> None:
        self._served = served
        self._work: Callable[[], PreparerWork] = nobody
        self.answer: Elsewhere = nowhere
        """Answers a whole request by a preparer."""
        self.endpoints: list[Any] = []
        """The endpoints that preparers may be asked for."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._forks: PreparerForks | None = None
        self._forked_for: tuple[object, ...] = ()
        self._forked_with = 0
        """Endpoints that the forks know."""
        self._idle: list[PreparerProcess] = []
        self._count = 0
        self._places = TenantPlaces(MOST, fewer_than_free)
        self._turns = TenantPlaces(at_a_time(), one_each)
        self.outcomes: dict[Outcome, int] = dict.fromkeys(get_args(Outcome), 0)
        """What became of tasks that a process was given, since this gateway began."""

    def connect(self, work: Callable[[], PreparerWork], answer: Elsewhere) -> None:
        """Called once, where the gateway is assembled. work: makes what preparers do that are
        forked from then on."""
        self._work, self.answer = work, answer

    def register(self, endpoint: Any) -> int:
        """The endpoint's place, by which preparers know it. To be called before the first body."""
        self.endpoints.append(endpoint)
        return len(self.endpoints) - 1

    @property
    def forks(self) -> PreparerForks | None:
        """The process that preparers are forked of now; None: none was wanted yet."""
        return self._forks

    @property
    def count(self) -> int:
        """Preparers that there are."""
        return self._count

    @property
    def busy(self) -> int:
        """Preparers that have a body, even if they wait for something else."""
        return self._count - len(self._idle)

    @property
    def waiting(self) -> int:
        """Bodies that wait for their tenants' turns, or for a process."""
        return self._turns.waiting + self._places.waiting

    @property
    def pids(self) -> list[int]:
        """Ids of the preparers that have nothing to do."""
        return [process.pid for process in self._idle]

    def turn(self, tenant: str) -> TenantPlace:
        """The turn of a body of this tenant's. A tenant's bodies wait for one another."""
        return TenantPlace(self._turns, tenant)

    def place(self, tenant: str) -> TenantPlace:
        """The place of a process for this tenant, to be had before one is taken."""
        return TenantPlace(self._places, tenant)

    def take(self) -> PreparerProcess:
        """A process that has nothing to do; give it back, or drop it. Raises Overloaded."""
        self._renew()
        while self._idle:
            process = self._idle.pop()
            if self._forks is not None and process.is_of(self._forks):
                return process
            self.drop(process)
        return self._start()

    def give_back(self, process: PreparerProcess) -> None:
        """Has the process stay for the next body, if it is to."""
        fits = self._forks is not None and process.is_of(self._forks) and not process.leaves
        if not fits or len(self._idle) >= IDLE:
            self.drop(process)
        else:
            self._idle.append(process)

    def drop(self, process: PreparerProcess) -> None:
        """Ends the process."""
        process.end()
        self._count -= 1

    def close(self) -> None:
        """Ends all of them. Idempotent."""
        for process in self._idle:
            process.end()
        self._idle.clear()
        if self._forks is not None:
            self._forks.close()
            self._forks = None

    def _renew(self) -> None:
        """Has forks be made of this process as it is now, if it has changed."""
        served = self._served()
        same = len(served) == len(self._forked_for) and all(
            one is other for one, other in zip(served, self._forked_for, strict=True)
        )
        same = same and self._forked_with == len(self.endpoints)
        loop = asyncio.get_running_loop()
        if self._forks is not None and self._forks.is_open and same and loop is self._loop:
            return
        self._loop = loop
        former, self._forks = self._forks, None
        if former is not None:
            # Those at work go on: they have their own socket, and aren't ended.
            former.retire()
        try:
            self._forks = PreparerForks(self._work())
        except OSError as error:
            raise _cannot_start(error) from None
        self._forked_for, self._forked_with = served, len(self.endpoints)

    def _start(self) -> PreparerProcess:
        if self._forks is None:
            raise _cannot_start("it was closed")
        try:
            process = PreparerProcess(self._forks)
        except OSError as error:
            raise _cannot_start(error) from None
        self._count += 1
        return process


def _cannot_start(reason: object) -> Overloaded:
    log.error("a process that prepares requests can't be started", reason=str(reason))
    return Overloaded("a process that prepares requests can't be started", retry_after=1.0)
