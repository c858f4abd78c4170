"""A front end's handle on one renderer process."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock.process.isolated import (
    IsolatedProcess,
    Standstill,
    Until,
)
from penstock.process.isolated_child import HEADER
from penstock.text.disarm import too_deep
from penstock.text.render.wire import MAX_FRAME, Bounds, Fill, Filled, TemplateSource

MAX_TEMPLATES = 16
"""Templates that a process knows at once, at most."""


class RenderProcess(IsolatedProcess):
    """Answers in any thread, or in an event loop."""

    def __init__(self, bounds: Bounds) -> None:
        # What it writes on stderr is a fault of ours, and should be seen.
        super().__init__(
            "penstock.text.render.child", ("jinja2", "markupsafe"), msgspec.json.encode(bounds)
        )
        self._bounds = bounds
        self._known: set[int] = set()

    def ask(self, source: TemplateSource, fill: Fill) -> Filled:
        """Fills a template; blocks. Raises InvalidRequest, Stalled, Frozen, Crashed or
        Died."""
        payload = self._payload(source, fill)
        until = Until(Standstill(self.pid, self._most(self._bounds.cpu)))
        try:
            self._send_until(until, HEADER.pack(len(payload)) + payload)
            (size,) = HEADER.unpack(self._receive_until(until, HEADER.size))
            answer = self._receive_until(until, size)
        except (OSError, EOFError):
            raise self._reason() from None
        self._started = True
        return _ANSWER.decode(answer)

    async def ask_async(self, source: TemplateSource, fill: Fill) -> Filled:
        """Asks as `ask` does, in an event loop."""
        payload = self._payload(source, fill)
        self._socket.setblocking(False)
        try:
            async with self._bounded(self._bounds.cpu):
                await self._send(payload)
                (size,) = HEADER.unpack(await self._receive(HEADER.size))
                answer = await self._receive(size)
        except (OSError, EOFError):
            raise self._reason() from None
        return _ANSWER.decode(answer)

    def _payload(self, source: TemplateSource, fill: Fill) -> bytes:
        known = fill.template in self._known
        forget = not known and len(self._known) >= MAX_TEMPLATES
        given = None if known else source
        payload = packed(msgspec.structs.replace(fill, source=given, forget=forget))
        if forget:
            self._known.clear()
        self._known.add(fill.template)
        return payload


def packed(fill: Fill) -> bytes:
    """A filling as it is sent. Raises InvalidRequest for what can't be, or is too much."""
    try:
        payload = _encoded(fill)
    except UnicodeEncodeError:
        raise InvalidRequest(
            "the messages are not valid Unicode: they hold lone surrogates", param="messages"
        ) from None
    except RecursionError:
        raise too_deep(_deep_one(fill.variables)) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"the messages hold what a chat template can't be given: {error}", param="messages"
        ) from None
    if len(payload) > MAX_FRAME:
        raise InvalidRequest(
            f"the conversation has {len(payload)} bytes; at most {MAX_FRAME} are accepted",
            param="messages",
        )
    return payload


def _encoded(message: Fill) -> bytes:
    try:
        return msgspec.msgpack.encode(message)
    except OverflowError:
        variables = msgspec.json.encode(message.variables)
        return msgspec.msgpack.encode(msgspec.structs.replace(message, variables=variables))


def _deep_one(variables: dict[str, Any] | bytes) -> str:
    """The variable, or its item, that is nested too deep to be packed."""
    if isinstance(variables, bytes):
        return "messages"
    for name, value in variables.items():
        items = list(value) if isinstance(value, (list, tuple)) else []
        if not _packs(value):
            return next((f"{name}[{i}]" for i, each in enumerate(items) if not _packs(each)), name)
    return "messages"


def _packs(value: Any) -> bool:
    try:
        msgspec.msgpack.encode(value)
    except RecursionError:
        return False
    return True


_ANSWER = msgspec.msgpack.Decoder(Filled)
