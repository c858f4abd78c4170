"""How long a JSON text takes to decode, estimated before anything is decoded.

msgspec decodes a text in one call, in which the interpreter's lock is held and nobody else is
served. How long it takes depends on what is in the text far more than on its bytes: 16 MiB of
base64 take 10 ms, and of nested lists 2 s. So what is dear is counted, in pieces between which
others have their turn, and refused where it is too much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from penstock.errors import InvalidRequest

MAX_UNITS = 524_288
"""What a text may hold, in units of about 50 ns, see `_Reading`: so it is decoded in some 30 ms."""
LONGEST_NAME = 1 << 20
"""Bytes of a field's name, in a body that is longer than _SHORT: errors quote it."""
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
        """Counts the next bytes. Raises InvalidRequest for a name that nobody gave a field."""
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
