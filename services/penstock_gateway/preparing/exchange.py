"""One body's exchanges with a preparer: in its tenant's turn, again where a process dies, and what
a client gets an error where the body is at fault."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import InvalidRequest, Overloaded
from penstock.process import logs
from penstock.process.isolated import STANDSTILL, Crashed, Died, Frozen, Stalled
from penstock_gateway.http.errors import as_http_error, clip
from penstock_gateway.preparing.answers import ANSWERS, Home
from penstock_gateway.preparing.error_data import data_of, data_of_http, exception_of
from penstock_gateway.preparing.wire import (
    FailedBody,
    HandledWhole,
    HomeAnswer,
    HomeQuestion,
    OpenedBody,
    PreparedBody,
    ToPreparer,
    WeighBody,
    WeighedBody,
)

if TYPE_CHECKING:
    from penstock_gateway.preparing.pool import Outcome
    from penstock_gateway.preparing.process import PreparerProcess
    from penstock_gateway.service import Service

Result = TypeVar("Result")

log = logs.get(__name__)

ATTEMPTS = 3
"""Preparers that a body gets when they die under it, for no fault of its own."""
MOST_WAIT = 30.0
"""Seconds after which a body is refused for which no process was free."""


class OutOfMemory(Exception):
    """A preparer wanted more memory than it may have."""


class BodyExchange:
    """Belongs to one body. `leave` it, whatever happens.

    tenant: whose it is.
    """

    def __init__(self, service: Service, tenant: str, body: bytes) -> None:
        self._preparers = service.preparers
        self._turn = service.preparers.turn(tenant)
        self._place = service.preparers.place(tenant)
        self.most = service.config.max_body_seconds
        """Seconds of processor time that the body may take."""
        self._most_mib = service.config.max_body_memory_mib
        self._body = body
        self._process: PreparerProcess | None = None

    def forget(self) -> None:
        """Lets go of the body."""
        self._body = b""

    @property
    def is_held(self) -> bool:
        """Whether a process is kept for what comes next."""
        return self._process is not None

    def leave(self) -> None:
        """Ends the turn, and gives the process back. Idempotent."""
        self._turn.leave()
        self.let_go()

    async def bravely(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """What the work returns; it is done again where its process dies for no fault of its own.
        Raises what the body's faults are. However it fails, the body is left."""
        try:
            return await self._bravely(work)
        except BaseException:
            self.leave()
            raise

    async def _bravely(self, work: Callable[[], Awaitable[Result]]) -> Result:
        for _ in range(ATTEMPTS):
            try:
                return await work()
            except Died as error:
                self._drop("died")
                log.warning("a process that prepared a request has died", reason=str(error))
            except Frozen:
                self._drop("frozen")
                log.error("a preparer stood still and was replaced", seconds=STANDSTILL)
                raise Overloaded(
                    "the process that prepared the request stood still, and was replaced",
                    retry_after=1.0,
                ) from None
            except Stalled:
                self._drop("too_dear")
                raise await self._too_dear() from None
            except OutOfMemory:
                self._drop("out_of_memory")
                log.warning("a body took too much memory to prepare", most_mib=self._most_mib)
                raise await self._refused(
                    f"takes more than {self._most_mib} MiB of memory to prepare"
                    " (--max-body-memory-mib)"
                ) from None
            except Crashed:
                self._drop("crashed")
                raise await self._refused("brought the process down that prepared it") from None
        log.error("preparers die", attempts=ATTEMPTS)
        raise Overloaded(
            "the process that prepared the request died, and so did the next ones", retry_after=1.0
        )

    async def _too_dear(self) -> InvalidRequest:
        log.warning("a body took too long to prepare, and its process was ended", most=self.most)
        return await self._refused(
            f"takes more than {self.most:g} s of a processor to prepare (--max-body-seconds)"
        )

    async def _refused(self, why: str) -> InvalidRequest:
        field, size = await self._largest()
        where = f"; its largest field is {clip(field)}, with {size} bytes" if field else ""
        return InvalidRequest(
            f"the request {why}{where}", param=field or None, code="request_too_large"
        )

    async def _largest(self) -> tuple[str, int]:
        """The name and the bytes of the body's largest field; none where that isn't known."""
        try:
            reply = await self.ask(WeighBody(self._body, self.most), self.most)
            self.let_go()
        except Exception:
            self._drop()
            return "", 0
        return (reply.field, reply.bytes) if isinstance(reply, WeighedBody) else ("", 0)

    async def ask(
        self, message: ToPreparer, cpu: float, home: Home | None = None
    ) -> OpenedBody | PreparedBody | HandledWhole | WeighedBody:
        """In the tenant's turn. Raises what the preparer's answer is, if it failed."""

        async def answer(ask: HomeQuestion) -> HomeAnswer:
            # Waiting for it takes no tenant's turn.
            self._turn.leave()
            reply = await _answered(ask, home)
            # Not where it is cancelled: then the body has left already, and nothing would leave the
            # turn again.
            await self._turn.enter()
            return reply

        await self._turn.enter()
        if self._process is None:
            await self._find_place()
            self._process = self._preparers.take()
        reply = await self._process.ask(message, cpu, answer)
        self._turn.leave()
        if isinstance(reply, FailedBody) and reply.error.kind == MemoryError.__name__:
            raise OutOfMemory
        if not isinstance(reply, OpenedBody | WeighedBody):
            self._preparers.outcomes["done"] += 1
        if isinstance(reply, FailedBody):
            self.let_go()
            raise exception_of(reply.error)
        return reply

    async def _find_place(self) -> None:
        """Waits for a place, leaving the tenant's turn meanwhile, which those with a place may need
        to end. Raises Overloaded."""
        if self._place.take():
            return
        self._turn.leave()
        try:
            await self._place.enter(MOST_WAIT)
        except TimeoutError:
            raise Overloaded(
                "other requests with large bodies are being prepared, as many as may be at a time",
                retry_after=1.0,
            ) from None
        await self._turn.enter()

    def let_go(self) -> None:
        """Gives the process back."""
        process, self._process = self._process, None
        if process is not None:
            if process.is_busy:
                self._preparers.drop(process)
            else:
                self._preparers.give_back(process)
        self._place.leave()

    def _drop(self, outcome: Outcome | None = None) -> None:
        if outcome is not None:
            self._preparers.outcomes[outcome] += 1
        self._turn.leave()
        process, self._process = self._process, None
        if process is not None:
            self._preparers.drop(process)
        self._place.leave()


async def _answered(ask: HomeQuestion, home: Home | None) -> HomeAnswer:
    """An error is an answer, too."""
    try:
        if home is None:
            raise RuntimeError("a preparer asks before it may")
        return HomeAnswer(ask.number, await ANSWERS[ask.what](home, ask.payload))
    except Exception as error:
        # A MemoryError of this process is no fault of the body's, as one of the preparer's is.
        data = None if isinstance(error, MemoryError) else data_of(error)
        if data is None:
            log.error("a preparer's question can't be answered", exception=True)
            data = data_of_http(as_http_error(error))
        return HomeAnswer(ask.number, error=data)
