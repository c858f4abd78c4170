"""Sends requests to this process's own application, and reads its replies as they arrive.

A stream is written to a bounded buffer, bypassing tasks and middlewares where it can, as it would
be written to an HTTP connection; the reader takes everything in the buffer at once. So a slow
reader gets few large pieces, and delays only its own request.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Scope

from penstock.process import logs
from penstock_gateway.http.events import Piece, Room, take_room

log = logs.get(__name__)

MOST_UNREAD = 64 * 1024
"""Bytes that wait for the reader before writers wait."""

_running: set[asyncio.Task[None]] = set()
"""Exchanges to their end: one whose client has left still has something to clean up."""


class AppExchange:
    """One request. Its methods are for one task."""

    def __init__(self, app: ASGIApp, scope: Scope, body: bytes = b"") -> None:
        self.status = 0
        """Status of the response; 0: it has not begun."""
        self.headers: dict[bytes, bytes] = {}
        self.aborted = False
        """Whether somebody else than its client has aborted it."""
        self._body: bytes | None = body
        self._pieces: list[Piece] = []
        self._unread = 0
        self._finished = False
        self._whole = False
        self._news = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._room = Room(full=False, write=self._write)
        take_room(scope, self._room)
        task = asyncio.create_task(self._run(app, scope))
        _running.add(task)
        task.add_done_callback(self._done)

    async def begun(self) -> None:
        """Returns when `status` and `headers` are there. Raises RuntimeError where none come."""
        while not self.status:
            if self._finished:
                raise RuntimeError("the application ended without an answer")
            self._news.clear()
            await self._news.wait()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The reply's body: each time, all that has come. Raises RuntimeError for one that is cut
        off."""
        while True:
            if self._pieces:
                found = b"".join(self._pieces)
                self._pieces.clear()
                self._unread = 0
                self._room.full = False
                self._has_room.set()
                yield found
            elif self._finished:
                break
            else:
                self._news.clear()
                await self._news.wait()
        if not self._whole:
            raise RuntimeError("the application ended in the middle of its answer")

    async def whole(self) -> bytes:
        """The reply's body to its end."""
        return b"".join([piece async for piece in self.pieces()])

    def abort(self) -> None:
        """Ends the request on behalf of another caller than its client."""
        self.aborted = True
        self.leave()

    def leave(self) -> None:
        """The client is gone, or has all that it wants: what still runs for it is aborted."""
        if not self._gone.done():
            self._gone.set_result(None)
        self._room.full = False
        self._has_room.set()

    async def _run(self, app: ASGIApp, scope: Scope) -> None:
        await app(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.shield(self._gone)
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.headers = dict(message.get("headers", ()))
            self.status = message["status"]
            self._news.set()
            return
        await self._has_room.wait()
        self._put(message.get("body", b""))
        if not message.get("more_body", False):
            self._whole = self._finished = True
            self._news.set()

    def _write(self, piece: Piece) -> bool:
        """Puts a piece of the body; False before the response has begun and after its end."""
        if not self.status or self._finished:
            return False
        self._put(piece)
        return True

    def _put(self, piece: Piece) -> None:
        if not piece or self._gone.done():
            return
        self._pieces.append(piece)
        self._unread += len(piece)
        if self._unread > MOST_UNREAD:
            self._room.full = True
            self._has_room.clear()
        self._news.set()

    def _done(self, task: asyncio.Task[None]) -> None:
        _running.discard(task)
        self._finished = True
        self._news.set()
        if not task.cancelled() and task.exception() is not None:
            # The boundary has logged it; what it raises only tells a server to cut a connection.
            log.debug("an exchange failed", reason=repr(task.exception()))


async def all_ended(timeout: float) -> None:
    """Waits until no exchange runs, or so many seconds; then cancels them."""
    if _running:
        await asyncio.wait(set(_running), timeout=timeout)
    for task in set(_running):
        task.cancel()


class RunningCalls:
    """Calls that one process runs, by their ids. Several requests may have the same id."""

    def __init__(self) -> None:
        self._by_id: dict[str, set[AppExchange]] = defaultdict(set)

    @contextmanager
    def known_as(self, exchange: AppExchange, request_id: str) -> Iterator[None]:
        """Lets the exchange be aborted by its id while the context is open. request_id: empty for
        one that can't be aborted."""
        if not request_id:
            yield
            return
        self._by_id[request_id].add(exchange)
        try:
            yield
        finally:
            left = self._by_id[request_id]
            left.discard(exchange)
            if not left:
                del self._by_id[request_id]

    def abort(self, request_ids: Iterable[str]) -> int:
        """Ends all that have one of the ids; returns how many those are."""
        found = {each for name in request_ids for each in self._by_id.get(name, ())}
        for exchange in found:
            exchange.abort()
        return len(found)
