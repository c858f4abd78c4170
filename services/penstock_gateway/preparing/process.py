"""The gateway's handle on a preparer."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Awaitable, Callable

from penstock.process.isolated import (
    CRASHES,
    STARTS,
    Crashed,
    Died,
    Frozen,
    Stalled,
    most_of,
    receive_exactly,
    unfrozen,
)
from penstock.process.isolated_child import HEADER
from penstock_gateway.preparing.forks import PreparerForks
from penstock_gateway.preparing.wire import (
    MAX_FRAME,
    FailedBody,
    Grown,
    HandledWhole,
    HomeAnswer,
    HomeQuestion,
    OpenedBody,
    PreparedBody,
    ToPreparer,
    WeighedBody,
    encode,
    encoded_task,
    from_preparer,
)

ENDS = 2.0
"""Seconds in which the reason of an end is known."""
_OVERTIME = (-signal.SIGPROF, -signal.SIGXCPU)

Answer = Callable[[HomeQuestion], Awaitable[HomeAnswer]]
"""Answers what a preparer asks for."""


class PreparerProcess:
    """One exchange at a time. After an exception it must be ended."""

    def __init__(self, forks: PreparerForks) -> None:
        """Raises OSError."""
        self._forks = forks
        self._socket: socket.socket = forks.fork()
        self._sending = asyncio.Lock()
        self._answers: set[asyncio.Task[None]] = set()
        """The answers that are being sent, also after the exchange in which they were asked for."""
        self.pid = 0
        self.leaves = False
        """Whether it ends by itself: it has grown large."""
        self.is_busy = False
        """Whether it was asked, and hasn't answered."""
        self._started = False
        """Whether it has said anything."""

    def is_of(self, forks: PreparerForks) -> bool:
        return self._forks is forks

    def end(self) -> None:
        """Ends it. To be called once."""
        for task in list(self._answers):
            task.cancel()
        self._socket.close()
        self._forks.end(self.pid)

    async def ask(
        self, message: ToPreparer, cpu: float, answer: Answer
    ) -> OpenedBody | PreparedBody | HandledWhole | WeighedBody | FailedBody:
        """What it answers. cpu: seconds of processor time that the process bounds itself to.
        answer: answers what it asks meanwhile, several at a time; of that the time isn't counted.

        Raises Stalled, Crashed, Frozen or Died.
        """
        self.is_busy = True
        replies: set[asyncio.Task[None]] = set()
        open_asks: set[int] = set()
        try:
            if not self.pid:
                await self._begin()
            async with unfrozen(self.pid, self._most(cpu)):
                await self._send(encoded_task(message))
            while isinstance(reply := await self._next(open_asks, cpu), HomeQuestion):
                open_asks.add(reply.number)
                task = asyncio.create_task(self._reply(reply, answer, open_asks))
                replies.add(task)
                task.add_done_callback(replies.discard)
            self.is_busy = False
            return reply
        except (OSError, EOFError):
            raise await self._reason() from None
        finally:
            for task in list(replies):
                task.cancel()

    async def _begin(self) -> None:
        """Waits for its process id, which the process that forks it tells. Raises Died; what comes
        next is a fork of another process."""
        try:
            async with unfrozen(self._forks.pid, STARTS):
                (self.pid,) = HEADER.unpack(await self._receive(HEADER.size))
        except Frozen:
            self._forks.close()
            raise Died("the process that forks preparers stood still") from None

    async def _reply(self, ask: HomeQuestion, answer: Answer, open_asks: set[int]) -> None:
        try:
            payload = encode(await answer(ask))
        finally:
            # While it is sent the process has something to do: to take it.
            open_asks.discard(ask.number)
        # To its end, whatever becomes of the exchange: after half a frame nothing is understood.
        sending = asyncio.create_task(self._send_answer(payload))
        self._answers.add(sending)
        sending.add_done_callback(self._answers.discard)

    async def _send_answer(self, payload: bytes) -> None:
        # Where the process has gone, the reader gets the error.
        with contextlib.suppress(OSError):
            await self._send(payload)

    async def _next(
        self, open_asks: set[int], cpu: float
    ) -> OpenedBody | PreparedBody | HandledWhole | WeighedBody | FailedBody | HomeQuestion:
        while True:
            async with unfrozen(self.pid, self._most(cpu), rests=lambda: bool(open_asks)):
                (size,) = HEADER.unpack(await self._receive(HEADER.size))
                if size > MAX_FRAME:
                    raise Died(f"it announces {size} bytes")
                message = from_preparer.decode(await self._receive(size))
            self._started = True
            if not isinstance(message, Grown):
                return message
            self.leaves = True

    def _most(self, cpu: float) -> float:
        return most_of(cpu, started=self._started)

    async def _send(self, payload: bytes) -> None:
        loop = asyncio.get_running_loop()
        async with self._sending:
            await loop.sock_sendall(self._socket, HEADER.pack(len(payload)))
            await loop.sock_sendall(self._socket, payload)

    async def _receive(self, size: int) -> bytearray:
        return await receive_exactly(self._socket, size)

    async def _reason(self) -> Exception:
        """Why there is no answer."""
        if not self.pid:
            return Died("it has not begun")
        status = await self._forks.status_of(self.pid, ENDS)
        if status in _OVERTIME:
            return Stalled()
        return Crashed() if status in CRASHES else Died(f"status {status}")
