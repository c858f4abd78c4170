"""Reads a request's body within its limits, with either HTTP parser, and estimates before anything
is decoded how long that will take.

msgspec decodes a text in one call, in which the interpreter's lock is held and no other request is
served. How long it takes depends on what is in the text far more than on its bytes: 16 MiB of
base64 take 10 ms, and of nested lists 2 s. So expensive parts are counted first, in pieces between
which other requests are served, and refused where they are too many.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator

from starlette.types import Receive, Scope

from penstock.errors import InvalidRequest, PenstockError
from penstock_gateway.http.body_room import BodyRoom, HeldBody
from penstock_gateway.http.errors import ClientGone, HTTPError

MAX_UNITS = 524_288
"""What a text may hold, in units of about 50 ns, see `_Reading`: so it is decoded in some 30 ms."""
LONGEST_NAME = 1 << 20
"""Bytes of a field's name, in a body that is longer than _SHORT: errors quote it."""
UNASKED = (b"application/x-www-form-urlencoded", b"text/plain", b"multipart/form-data")
"""Types that browsers send to another site without a preflight (Fetch, "CORS-safelisted")."""
_MOST_OF_A_BYTE = 8
_SHORT = 1 << 22
"""Bytes up to which the bytes by themselves count for little."""
_PIECE = 1 << 18
_STRUCTURE = b",:[{"
_OTHERS = bytes(set(range(256)) - set(_STRUCTURE + b"\\"))


async def check_amount(text: bytes) -> None:
    """Raises InvalidRequest for a text that isn't decoded in a turn."""
    for _ in _checking(text):
        await asyncio.sleep(0)


def check_amount_now(text: bytes) -> None:
    """Raises InvalidRequest as `check_amount` does, without turns: for a text of a MiB or so, or in
    a thread."""
    for _ in _checking(text):
        pass


class ConversationAmount:
    """Counts what a request goes on from as if the request brought all of it. size: bytes of all of
    it, at most."""

    def __init__(self, size: int) -> None:
        self._is_small = _MOST_OF_A_BYTE * size <= MAX_UNITS
        self._units = 0.0

    async def add(self, text: bytes, what: str, param: str | None) -> None:
        """Others have their turn meanwhile. Raises InvalidRequest where it is too much with what
        was added before. what: all of it is called."""
        if self._is_small:
            return
        reading = _Reading()
        for piece in _pieces(text):
            reading.add(piece)
            if self._units + reading.units > MAX_UNITS:
                raise _too_much(what, self._units + reading.units, param=param)
            await asyncio.sleep(0)
        self._units += reading.units


class TextsAmount:
    """Counts the JSON texts within one body together. Values in their strings count too: there are
    fewer of them than a body may have."""

    def __init__(self) -> None:
        self._units = 0.0

    def add(self, text: str | None, where: str) -> None:
        """Raises InvalidRequest that names the field."""
        written = (text or "").encode(errors="replace")
        self._units += _units(written.translate(None, _OTHERS))
        if self._units > MAX_UNITS:
            raise _too_much(where, self._units, param=where)


def _checking(text: bytes) -> Iterator[None]:
    """Yields between pieces. Most texts are found to be harmless before they are read exactly."""
    if _MOST_OF_A_BYTE * len(text) <= MAX_UNITS:
        return
    if len(text) <= _SHORT and _units(text.translate(None, _OTHERS)) <= MAX_UNITS:
        return
    reading = _Reading()
    for piece in _pieces(text):
        reading.add(piece)
        if reading.units > MAX_UNITS:
            raise _too_much("the request body", reading.units)
        yield


def _pieces(text: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(text):
        piece = text[at : at + _PIECE]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2 and len(piece) > 1:
            piece = piece[:-1]  # An escape stays whole.
        at += len(piece)
        yield piece


def _too_much(what: str, units: float, param: str | None = None) -> InvalidRequest:
    return InvalidRequest(
        f"{what} holds too many values, escapes or characters beyond ASCII: what was read of it "
        f"counts as {units:.0f} (a comma 1, a colon 6, a list or an object 8, 8 escapes 1, 16 "
        f"bytes beyond ASCII 1), and at most {MAX_UNITS} are allowed",
        param=param,
        code="request_too_large",
    )


class _Reading:
    """Tells what is in strings from what isn't. Short strings count as what is around them."""

    def __init__(self) -> None:
        self.units = 0.0
        self._inside = False
        self._dear = 0.0
        """Units of a byte of the string that is open: one wide character makes all of it wide."""
        self._open = 0
        """Bytes of that string."""

    def add(self, piece: bytes) -> None:
        """Counts the next bytes. Raises InvalidRequest for a name that no field has."""
        dear = max(self._dear, _dearness(piece)) if self._inside else _dearness(piece)
        outside = b"" if self._inside else piece
        self._dear = dear
        if b'"' in piece:
            parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
            if self._open > LONGEST_NAME and parts[1].lstrip().startswith(b":"):
                raise InvalidRequest(
                    f"the request body has a field whose name is longer than {LONGEST_NAME} bytes",
                    code="unknown_parameter",
                )
            self._open = len(parts[-1])
            outside = b"".join(parts[self._inside :: 2])
            self._inside ^= len(parts) % 2 == 0
            self._dear = _dearness(parts[-1])
            self._open *= self._inside
        elif self._inside:
            self._open += len(piece)
        self.units += len(outside) / 16 + (len(piece) - len(outside)) * dear
        self.units += (piece.count(b"\\") + piece.count(b"\\u")) / 8
        self.units += _units(outside.replace(b"\\", b""))


def _dearness(text: bytes) -> float:
    """Units of a byte in a string, of which these are some."""
    if not text.isascii() or b"\\u" in text:
        return 1 / 16
    return 1 / 64 if b"\\" in text else 1 / 128


def _units(found: bytes) -> float:
    """Units of a text, from its structure and backslashes: what is left of it without its
    letters."""
    lists = found.count(b"[") + found.count(b"{")
    return found.count(b",") + 6 * found.count(b":") + 8 * lists + found.count(b"\\") / 4


Feed = Callable[[bytes], None]
"""Takes the next part of a body."""

LINGER_BYTES = 256 * 1024 * 1024
LINGER_SECONDS = 10.0
"""How much of an over-long body is read and dropped, so that its sender gets to see the answer:
a connection closed with unread data is reset, and the answer lost."""


async def read_body(
    scope: Scope, receive: Receive, *, limit: int, timeout: float, room: BodyRoom, tenant: str
) -> bytes:
    """The whole body, at most `limit` bytes. room: of which the tenant's body takes its share, up
    to the request's end. Raises HTTPError 413, 408 or 400, ClientGone, or Overloaded."""
    parts: list[bytes] = []
    held = HeldBody(room, tenant)
    former: HeldBody | None = scope.get(HeldBody.SCOPE)
    if former is not None:
        former.leave()  # The same body, passed to its endpoint.
    scope[HeldBody.SCOPE] = held

    def take(part: bytes) -> None:
        held.grow(len(part))
        parts.append(part)

    await feed_body(scope, receive, take, limit=limit, timeout=timeout)
    if len(parts) == 1:
        return parts[0]
    await asyncio.sleep(0)  # Of a long body, putting it together is a turn by itself.
    body = b"".join(parts)
    parts.clear()
    await asyncio.sleep(0)
    return body


async def feed_body(
    scope: Scope, receive: Receive, feed: Feed, *, limit: int, timeout: float
) -> None:
    """Gives the body, at most `limit` bytes, to `feed` as it comes in. Raises as `read_body` does,
    and what `feed` raises: the rest of the body is dropped then."""
    declared, expects_go_ahead = _read_headers(scope)
    if declared is not None and declared > limit:
        if not expects_go_ahead:
            await _linger(receive)
        raise _too_large(limit)
    try:
        async with asyncio.timeout(timeout):
            await _feed(receive, feed, limit)
    except TimeoutError:
        raise HTTPError(
            408,
            f"the request body did not arrive within {timeout:g} seconds",
            code="request_timeout",
            headers=(("connection", "close"),),
        ) from None


def check_json_type(scope: Scope, *, forms_too: bool = False) -> None:
    """Raises HTTPError 415 for a body of a type that a page can send to other sites without asking
    first. Any other is read as JSON, whatever it calls itself: some clients say
    application/octet-stream, some nothing.
    forms_too: application/x-www-form-urlencoded, which curl says of everything, passes."""
    for name, value in scope["headers"]:
        if name != b"content-type" or value == b"application/json":
            continue
        kind = re.split(b"[;,]", value, maxsplit=1)[0].strip().lower()
        if kind not in UNASKED or (forms_too and kind == UNASKED[0]):
            continue
        raise HTTPError(
            415,
            f"content-type {value[:80].decode('ascii', 'replace')!r} is not accepted here: send "
            "JSON with the header `content-type: application/json` (curl: -H 'content-type: "
            "application/json')",
            code="unsupported_media_type",
        )


async def _feed(receive: Receive, feed: Feed, limit: int) -> None:
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("disconnected while sending the body")
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            if message.get("more_body", False):
                await _linger(receive)
            raise _too_large(limit)
        try:
            feed(part)
        except PenstockError:
            if message.get("more_body", False):
                await _linger(receive)
            raise
        if not message.get("more_body", False):
            return


async def _linger(receive: Receive) -> None:
    dropped = 0
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while dropped < LINGER_BYTES:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone("disconnected while sending the body")
                dropped += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return


def _too_large(limit: int) -> HTTPError:
    return HTTPError(
        413,
        f"the request body is larger than {limit} bytes, the maximum",
        code="request_too_large",
        headers=(("connection", "close"),),
    )


def _read_headers(scope: Scope) -> tuple[int | None, bool]:
    """Declared length in bytes, if any, and whether the client waits for a 100 Continue."""
    declared: int | None = None
    expects = False
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            declared = int(value) if len(value) <= 18 else 10**18
        elif name == b"expect":
            expects = value.lower() == b"100-continue"
        elif name == b"content-encoding" and value.lower() not in (b"", b"identity"):
            raise HTTPError(
                400,
                f"content-encoding {value[:40].decode('ascii', 'replace')!r} is not supported; "
                "send the body uncompressed",
                code="unsupported_content_encoding",
            )
    return declared, expects


def content_type(scope: Scope) -> bytes:
    """The request's header of that name; empty where it has none."""
    for name, value in scope["headers"]:
        if name == b"content-type":
            return bytes(value)
    return b""
