"""Server-sent events, whose response headers are sent only with the first event; what a response
may know of the connection that it goes out on; and work that ends when the client has gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.types import Message, Receive, Scope, Send

from penstock.errors import EngineLost
from penstock_gateway.http.errors import ClientGone, HTTPError, as_http_error
from penstock_gateway.http.prompt_write import TextWrite

Unwritten = bytes | bytearray | list[bytes] | Callable[[], list[bytes]]
DONE = b"data: [DONE]\n\n"
PING = b": ping\n"
"""A comment line, which parsers of event streams skip. No empty line ends it: to those that take
whatever stands between two of them for an event, it would be one."""


@dataclass(frozen=True, slots=True)
class StreamForm:
    """How a stream is written. quiet: it has no comments, so nothing keeps it alive."""

    content_type: bytes
    quiet: bool = False

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers of the response."""
        return [
            (b"content-type", self.content_type),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]


SERVER_SENT_EVENTS = StreamForm(b"text/event-stream; charset=utf-8")
JSON_LINES = StreamForm(b"application/x-ndjson", quiet=True)
"""A JSON object in each line."""


def failed_stream(error: HTTPError) -> bytes:
    """The error object as an event, and the end."""
    return b"data: " + error.encoded() + b"\n\n" + DONE


class EventStream:
    """One response. The first write, or the first keep-alive that is due, sends the headers: so
    an error that comes before has a proper status.

    A write waits while the client's connection is full; the server cuts connections that stay
    full (see http.protocol).  keepalive: seconds of silence before a comment is sent; 0: never.
    room: of the connection.  failure: writes what a started stream ends with that fails.
    """

    __slots__ = (
        "_form",
        "_keepalive",
        "_last_write",
        "_lock",
        "_room",
        "_send",
        "_text",
        "_write_seconds",
        "_writing",
        "before_last",
        "breaks_off",
        "failure",
        "headers",
        "started",
    )

    def __init__(
        self,
        send: Send,
        *,
        keepalive: float,
        room: Room | None = None,
        failure: Callable[[HTTPError], bytes] = failed_stream,
        form: StreamForm = SERVER_SENT_EVENTS,
    ) -> None:
        self._send = send
        self._form = form
        self.failure = failure
        self._room = Room(full=True) if room is None else room
        self._writing = False
        self._keepalive = 0.0 if form.quiet else keepalive
        self._lock = asyncio.Lock()
        self._last_write = time.perf_counter()
        self._text: TextWrite | None = None
        self.started = False
        self.breaks_off = False
        """The client goes on elsewhere: where the server or its engine cores leave, the connection
        just ends."""
        self.headers: Iterable[tuple[str, str]] = ()
        """Sent with the first event."""
        self.before_last: Callable[[], Awaitable[None]] | None = None
        """Done once, before the last events go out: what a client may ask for when it has them. It
        may still change the last ones."""
        self._write_seconds = 0.0

    @property
    def write_seconds(self) -> float:
        """Spent in writes."""
        return self._write_seconds + (0.0 if self._text is None else self._text.seconds)

    async def write(self, data: Unwritten, *, last: bool = False) -> None:
        """Sends whole events; of a list, piece by piece, and nothing else between them. A function
        gives them when `before_last` is done."""
        before, self.before_last = (self.before_last, None) if last else (None, self.before_last)
        if before is not None:
            await before()
        begun = time.perf_counter()
        async with self._lock:
            self._writing = True
            try:
                if callable(data):
                    data = data()
                if isinstance(data, list):
                    for piece in data[:-1]:
                        await self._put(piece, last=False)
                    data = data[-1] if data else b""
                await self._put(bytes(data), last=last)
            finally:
                self._writing = False
        self._write_seconds += time.perf_counter() - begun

    async def _put(self, data: bytes, *, last: bool) -> None:
        if not self.started:
            self.started = True
            await self._send(self._head())
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})
        self._last_write = time.perf_counter()

    def _head(self) -> Message:
        more = [(name.encode(), value.encode()) for name, value in self.headers]
        headers = self._form.headers + more
        return {"type": "http.response.start", "status": 200, "headers": headers}

    def can_write_now(self) -> bool:
        """Whether no other write is going on, and the client reads."""
        return not self._writing and not self._room.full

    def write_now(self, data: Piece) -> None:
        """Sends whole events without waiting, where `can_write_now`: straight onto the connection,
        or where that can't be, and at the beginning, through the application's layers.
        """
        begun = time.perf_counter()
        if not self.started:
            self._room.together(lambda: self._put_now(data))
        elif not self._room.write(data):
            self._put_now(data)
        self._last_write = now = time.perf_counter()
        self._write_seconds += now - begun

    def text(self, before: bytes, after: bytes) -> TextWrite | None:
        """What writes later events at once that are a JSON string between `before` and `after`,
        past all that is here; None where that can't be yet, or ever."""
        self._text = self._room.text(before, after)
        return self._text

    def _put_now(self, data: Piece) -> None:
        if not self.started:
            self.started = True
            self._send_now(self._head())
        self._send_now({"type": "http.response.body", "body": bytes(data), "more_body": True})

    def _send_now(self, message: Message) -> None:
        """An ASGI server's send is a coroutine; one that doesn't wait ends at its first step,
        outside of any task."""
        sending = self._send(message)
        try:
            sending.send(None)  # type: ignore[attr-defined]
        except StopIteration:
            return
        sending.close()  # type: ignore[attr-defined]
        raise RuntimeError("the server is blocked in a send although the connection has room")

    async def fail(self, error: HTTPError) -> None:
        """Ends a started stream with an error event."""
        await self.write(self.failure(error), last=True)

    async def break_off(self) -> None:
        """Ends the connection in the middle of a stream, after what was sent."""
        self._room.close()
        await asyncio.sleep(0)  # Then it has ended, if its client reads.

    async def tick(self) -> float | None:
        """Sends a keep-alive when one is due. Returns the seconds until the next look."""
        if not self._keepalive:
            return None
        last = self._last_write if self._text is None else max(self._last_write, self._text.last)
        due = last + self._keepalive - time.perf_counter()
        if due > 0:
            return due
        await self.write(PING)
        return self._keepalive


ROOM = "penstock.room"
"""Key of the connection's Room in a scope's state."""

Piece = bytes | bytearray
"""A piece of a response's body. Who hands one over leaves it as it is."""


def nowhere(piece: Piece) -> bool:
    """A Room's `write` where there is no connection."""
    return False


def no_text(before: bytes, after: bytes) -> None:
    """A Room's `text` where nothing is written past the application."""


def apart(put: Callable[[], None]) -> None:
    """A Room's `together` there."""
    put()


def unconnected() -> None:
    """A Room's `close` there."""


class Room:
    """What a response may know of its connection."""

    __slots__ = ("close", "full", "text", "together", "write")

    def __init__(
        self,
        *,
        full: bool,
        write: Callable[[Piece], bool] = nowhere,
        together: Callable[[Callable[[], None]], None] = apart,
        close: Callable[[], None] = unconnected,
    ) -> None:
        self.full = full
        """A send would wait for the client to read."""
        self.write = write
        """Puts a piece of the body that is being sent straight onto the connection, past all layers
        of the application; False where it can't, and has written nothing."""
        self.text: Callable[[bytes, bytes], TextWrite | None] = no_text
        """Gives what does so with events between whose parts, as it is given them, stands a JSON
        string; None where there is no such thing.  It is the body's that is being sent."""
        self.together = together
        """Calls what it is given, and puts all that this sends onto the connection at once."""
        self.close = close
        """Ends the connection once all that was sent is out."""

    def leave(self) -> None:
        """Refers to the connection no more."""
        self.write, self.text, self.together, self.close = nowhere, no_text, apart, unconnected


def room_of(scope: Scope) -> Room:
    """The Room of a request's connection; one that is always full where the server doesn't tell."""
    found: Room | None = scope.get("state", {}).get(ROOM)
    return Room(full=True) if found is None else found


def take_room(scope: Scope, room: Room) -> None:
    """Gives a request a Room, where no connection of this module does."""
    scope.setdefault("state", {})[ROOM] = room


Result = TypeVar("Result")
Tick = Callable[[], Awaitable[float | None]]
"""Called between looks at the client. Returns the seconds until it wants to be called again;
None: never."""


class Answering:
    """Counts the requests that are being answered: a context manager around the work for each. A
    gateway that leaves waits for them."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        self.count += 1

    def __exit__(self, *raised: object) -> None:
        self.count -= 1


async def while_connected(
    work: Coroutine[Any, Any, Result], receive: Receive, tick: Tick | None = None
) -> Result:
    """Runs `work`, and cancels it at once when the client disconnects.

    Returns what `work` returns and raises what it, or `tick`, raises; ClientGone after a
    disconnect.  The request's body must have been read.
    """
    worker = asyncio.create_task(work)
    watcher = asyncio.create_task(_watch(receive, tick))
    try:
        await asyncio.wait((worker, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not worker.done():
            watcher.result()  # Raises: a watcher has no other end.
        return worker.result()
    finally:
        for task in (worker, watcher):
            task.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)
        # An error knows this frame by its traceback: with the tasks, which know the error, it would
        # keep all of the request, such as a body of 32 MiB, until the garbage collector looks.
        del worker, watcher, task


LEAVING = (asyncio.CancelledError, EngineLost)
"""What ends work that another server, or this one later, may go on with. What an operator aborts,
or what a model that can't be started was asked for, isn't that: it would come again for ever."""


async def stream_while_connected(
    work: Coroutine[Any, Any, None], receive: Receive, events: EventStream
) -> None:
    """Runs `work`, which writes `events`, in the same way, and keeps the stream alive. What fails
    once the stream has begun ends it with an error event.  One that its client goes on with
    elsewhere breaks off where the server or all its engine cores leave: an error would be its end.

    Raises as `while_connected` does.
    """
    try:
        await while_connected(work, receive, events.tick)
    except ClientGone:
        raise
    except (Exception, asyncio.CancelledError) as error:
        if events.started and events.breaks_off and isinstance(error, LEAVING):
            await events.break_off()
        elif events.started:
            await events.fail(as_http_error(error))
        raise


async def _watch(receive: Receive, tick: Tick | None) -> None:
    while True:
        pause = None if tick is None else await tick()
        try:
            async with asyncio.timeout(pause):
                message = await receive()
        except TimeoutError:
            continue
        if message["type"] == "http.disconnect":
            raise ClientGone("disconnected")
