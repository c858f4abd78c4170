"""A front end's handle on one renderer process."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock.frames import HEADER
from penstock.isolated.process import IsolatedProcess, Stalled
from penstock.text.render.wire import MAX_FRAME, Bounds, Fill, Filled

MAX_TEMPLATES = 16
"""That a process knows at once."""

START_TIME = 20.0
"""Seconds."""


class RenderProcess(IsolatedProcess):
    """Answers in any thread, or in an event loop."""

    def __init__(self, bounds: Bounds) -> None:
        # What it writes on stderr is a fault of ours, and should be seen.
        super().__init__(
            "penstock.text.render.child", ("jinja2", "markupsafe"), msgspec.json.encode(bounds)
        )
        self._bounds = bounds
        self._known: set[int] = set()
        self._answered = False

    @property
    def wall(self) -> float:
        """Seconds that an exchange may take by the clock: three times its CPU time, so that a busy
        machine doesn't pass for a stalled template; the first waits for the process to start."""
        return 3 * self._bounds.cpu + (0.0 if self._answered else START_TIME)

    def ask(self, template: int, source: str, fill: _Variables) -> Filled:
        """Fills a template; blocks. Raises InvalidRequest, Stalled, Crashed or Died."""
        payload = self._payload(template, source, fill)
        deadline = time.monotonic() + self.wall
        try:
            self._timeout(deadline)
            self._socket.sendall(HEADER.pack(len(payload)) + payload)
            (size,) = HEADER.unpack(self._receive_until(deadline, HEADER.size))
            answer = self._receive_until(deadline, size)
        except TimeoutError:
            raise Stalled from None
        except (OSError, EOFError):
            raise self._reason() from None
        self._answered = True
        return _ANSWER.decode(answer)

    async def ask_async(self, template: int, source: str, fill: _Variables) -> Filled:
        """The same in an event loop."""
        payload = self._payload(template, source, fill)
        self._socket.setblocking(False)
        try:
            async with asyncio.timeout(self.wall):
                await self._send(payload)
                (size,) = HEADER.unpack(await self._receive(HEADER.size))
                answer = await self._receive(size)
        except TimeoutError:
            raise Stalled from None
        except (OSError, EOFError):
            raise self._reason() from None
        self._answered = True
        return _ANSWER.decode(answer)

    def _payload(self, template: int, source: str, fill: _Variables) -> bytes:
        known = template in self._known
        forget = not known and len(self._known) >= MAX_TEMPLATES
        variables, max_length = fill
        message = Fill(template, variables, max_length, None if known else source, forget)
        try:
            payload = msgspec.msgpack.encode(message)
        except UnicodeEncodeError:
            raise InvalidRequest(
                "the messages are not valid Unicode: they hold lone surrogates", param="messages"
            ) from None
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidRequest(
                f"the messages hold what a chat template can't be given: {error}", param="messages"
            ) from None
        if len(payload) > MAX_FRAME:
            raise InvalidRequest(
                f"the conversation has {len(payload)} bytes; at most {MAX_FRAME} are accepted",
                param="messages",
            )
        if forget:
            self._known.clear()
        self._known.add(template)
        return payload

    def _timeout(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)

    def _receive_until(self, deadline: float, size: int) -> bytearray:
        buffer = bytearray(size)
        view, at = memoryview(buffer), 0
        while at < size:
            self._timeout(deadline)
            got = self._socket.recv_into(view[at:])
            if not got:
                raise EOFError
            at += got
        return buffer


_Variables = tuple[dict[str, Any], int]
_ANSWER = msgspec.msgpack.Decoder(Filled)
