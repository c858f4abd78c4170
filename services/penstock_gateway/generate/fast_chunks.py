"""Chunks of a stream that differ only in one text, written without building them anew."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from penstock_gateway.generate.reply import (
    append_event,
    encoder,
)

if TYPE_CHECKING:
    pass


@cache
def _text_mark() -> str:
    """Returns the placeholder for the text of a fast chunk. It can't be part of a model's name or a
    request's id."""
    return secrets.token_hex(16)


class FastChunk:
    """chunk_of: makes the chunk for a text. What comes before and after the text is encoded once:
    with the text's JSON between them, they are the bytes that append_event gives.
    """

    __slots__ = ("_after", "_before")

    def __init__(self, chunk_of: Callable[[str], msgspec.Struct]) -> None:
        event = bytearray()
        append_event(event, chunk_of(_text_mark()))
        self._before, self._after = bytes(event).split(f'"{_text_mark()}"'.encode())

    @property
    def around(self) -> tuple[bytes, bytes]:
        return self._before, self._after

    def event(self, text: str) -> bytes:
        return b"".join((self._before, encoder.encode(text), self._after))


ChunkOf = Callable[[int, str, bool], msgspec.Struct]
"""A chunk, from a choice's index and a text; `usage` in it is absent, or null if that says so."""


class FastChunks:
    """Fast chunks of one reply: one for each choice, made when it is first wanted.

    chunk_of is passed each time, and not kept: it is a reply's own method, and a cycle would only
    be freed by the garbage collector.
    """

    __slots__ = ("_by_choice",)

    def __init__(self) -> None:
        self._by_choice: dict[int, FastChunk] = {}  # -1 - choice where usage is null.

    def of(self, choice: int, chunk_of: ChunkOf, *, nullable: bool) -> FastChunk:
        """Returns the choice's. nullable: its usage is null."""
        key = -1 - choice if nullable else choice
        fast = self._by_choice.get(key)
        if fast is None:
            fast = FastChunk(lambda text: chunk_of(choice, text, nullable))
            self._by_choice[key] = fast
        return fast
