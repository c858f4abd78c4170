"""A preparer's end of its socket: tasks that come, and what it asks of its gateway, which has the
network, the disk and other requests' media."""

from __future__ import annotations

import asyncio
import os
import socket

from penstock.process import logs
from penstock.process.isolated import receive_exactly
from penstock.process.isolated_child import HEADER
from penstock_gateway.preparing.error_data import exception_of
from penstock_gateway.preparing.wire import (
    MAX_FRAME,
    FromPreparer,
    HomeAnswer,
    HomeQuestion,
    PreparerTask,
    encode,
    to_preparer,
)

log = logs.get(__name__)


class Channel:
    """A preparer's end of its socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._tasks: asyncio.Queue[PreparerTask | None] = asyncio.Queue()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._asked = 0
        self._sending = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._unanswered: set[asyncio.Task[bytes]] = set()

    def begin(self) -> None:
        """Begins to read."""
        self._reading = asyncio.create_task(self._read())

    async def next_task(self) -> PreparerTask | None:
        """None: the gateway has gone."""
        return await self._tasks.get()

    async def send(self, message: FromPreparer) -> None:
        """Raises OSError where the gateway has gone."""
        loop = asyncio.get_running_loop()
        payload = encode(message)
        async with self._sending:
            await loop.sock_sendall(self._socket, HEADER.pack(len(payload)))
            await loop.sock_sendall(self._socket, payload)

    async def ask(self, what: str, payload: bytes) -> bytes:
        """What the gateway answers. Raises what its answer failed with."""
        self._asked += 1
        number = self._asked
        reply = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self.send(HomeQuestion(number, what, payload))
        return await reply

    def tell(self, what: str, payload: bytes) -> None:
        """Asks, and waits for no answer."""
        task = asyncio.create_task(self.ask(what, payload))
        self._unanswered.add(task)
        task.add_done_callback(self._unanswered.discard)

    async def _read(self) -> None:
        try:
            while True:
                (size,) = HEADER.unpack(await self._receive(HEADER.size))
                if size > MAX_FRAME:
                    raise EOFError
                message = to_preparer.decode(await self._receive(size))
                if isinstance(message, HomeAnswer):
                    self._hear(message)
                else:
                    self._tasks.put_nowait(message)
        except (OSError, EOFError):
            # Whatever is waited for won't come.
            os._exit(0)
        except Exception:
            log.error("a preparer can't read what its gateway says", exception=True)
            os._exit(1)

    def _hear(self, reply: HomeAnswer) -> None:
        waiting = self._waiting.pop(reply.number)
        if waiting.done():
            return  # Who asked no longer waits: another question failed, for one.
        if reply.error is None:
            waiting.set_result(reply.payload)
        else:
            waiting.set_exception(exception_of(reply.error))

    async def _receive(self, size: int) -> bytearray:
        return await receive_exactly(self._socket, size)
