"""JSON that is too large to be written in one turn of the event loop: it is written piece by piece,
and goes out so."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.client.deltas import SequenceDelta
from penstock_gateway.generate.logprobs import CompletionLogprobs, completion_logprobs
from penstock_gateway.generate.reply import encoder
from penstock_gateway.request.tokenising import loop_turn

if TYPE_CHECKING:
    from penstock.protocol.common import TokenLogprobs
    from penstock.text.tokenizer import Tokenizer

TURN = 0.002
"""Seconds that a reply is written without a pause."""
STEP = 32
"""Tokens whose log-probabilities are written at once: with 20 alternatives each, half of a TURN."""
MANY = 128
"""Tokens from which on writing what is shown of them may need more than a turn."""
LONG_TEXT = 1024
"""Characters of a text that are read at once."""
PIECE = 1 << 16
"""Bytes of a piece, about."""
_MARK = secrets.token_hex(16).encode()
_PLACE = re.compile(rb'"' + _MARK + rb':(\d+)"')


class Pace:
    """The pace of long work on the event loop: it rests when it has lasted a turn."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def rest(self) -> None:
        """Others have their turn, if this one has lasted long."""
        if time.perf_counter() - self._since >= TURN:
            await asyncio.sleep(0)
            self._since = time.perf_counter()


@asynccontextmanager
async def paced(tokens: int) -> AsyncIterator[Pace]:
    """Writing what is shown of so many tokens: of many, it waits for its tenant's turn."""
    if tokens <= MANY:
        yield Pace()
        return
    async with loop_turn():
        yield Pace()


class JsonList:
    """A JSON list that grows. after: it begins with what that one holds, without a copy."""

    def __init__(self, after: JsonList | None = None) -> None:
        self._pieces: list[bytes] = [] if after is None else [*after._pieces, bytes(after._last)]
        self._last: bytearray = bytearray(b"[" if after is None else b"")
        self._begun: bool = after is not None and after._begun

    def __bool__(self) -> bool:
        return self._begun

    def add(self, elements: Sequence[object]) -> None:
        if not elements:
            return
        self.add_written([encoder.encode(elements)[1:-1]])

    def add_written(self, pieces: list[bytes]) -> None:
        """Elements that are JSON, with commas between them."""
        if self._begun:
            self._last += b","
        self._begun = True
        for piece in pieces:
            if len(piece) > PIECE:
                self._pieces += [bytes(self._last), piece] if self._last else [piece]
                self._last = bytearray()
                continue
            self._last += piece
            if len(self._last) > PIECE:
                self._pieces.append(bytes(self._last))
                self._last = bytearray()

    def pieces(self) -> list[bytes]:
        return [*self._pieces, bytes(self._last) + b"]"]


class Splices:
    """Texts that were written in pieces, and where they belong in what is encoded later."""

    def __init__(self) -> None:
        self._pieces: list[list[bytes]] = []

    def put(self, pieces: list[bytes]) -> Any:
        """Stands for that JSON in a struct, whatever its field's type."""
        self._pieces.append(pieces)
        return msgspec.Raw(b'"%b:%d"' % (_MARK, len(self._pieces) - 1))

    def spliced(self, encoded: bytes | bytearray) -> list[bytes]:
        """The pieces of what was encoded with all that stands in it."""
        if not self._pieces:
            return [bytes(encoded)]
        between = _PLACE.split(encoded)
        found: list[bytes] = []
        for at, part in enumerate(between):
            found += self._pieces[int(part)] if at % 2 else [part] if part else []
        return found


class LogprobLists:
    """The parallel lists of CompletionLogprobs. after: of the tokens before."""

    def __init__(self, after: LogprobLists | None = None) -> None:
        count = len(CompletionLogprobs.__struct_fields__)
        before: Sequence[JsonList | None] = [None] * count if after is None else after._lists
        self._lists: list[JsonList] = [JsonList(each) for each in before]
        self.offset: int = 0 if after is None else after.offset
        """Characters of the text so far."""

    async def add(
        self,
        tokenizer: Tokenizer,
        ids: list[int],
        logprobs: Sequence[TokenLogprobs | None] | None,
        pace: Pace,
        *,
        as_ids: bool,
    ) -> None:
        """The next tokens. Those without log-probabilities are left out."""
        given = logprobs or ()
        for begin, end in steps(min(len(ids), len(given))):
            more, self.offset = completion_logprobs(
                tokenizer, ids[begin:end], given[begin:end], self.offset, as_ids=as_ids
            )
            self.extend(more)
            await pace.rest()

    def extend(self, later: CompletionLogprobs) -> None:
        """Appends those of the tokens that follow."""
        for each, field in zip(self._lists, later.__struct_fields__, strict=True):
            each.add(getattr(later, field))

    def shown(self, splices: Splices) -> CompletionLogprobs:
        return CompletionLogprobs(*(splices.put(each.pieces()) for each in self._lists))


def steps(count: int) -> Iterator[tuple[int, int]]:
    """Yields begin and end of each STEP of so many tokens."""
    for begin in range(0, count, STEP):
        yield begin, min(count, begin + STEP)


def parts_of(delta: SequenceDelta) -> Iterator[SequenceDelta]:
    """A delta of many tokens as several of few; its text comes with the last ones, as where it lags
    behind, and its end with the very last."""
    if len(delta.token_ids) <= MANY:
        yield delta
        return
    logprobs = delta.logprobs
    for begin, end in steps(len(delta.token_ids)):
        yield SequenceDelta(
            index=delta.index,
            token_ids=delta.token_ids[begin:end],
            logprobs=None if logprobs is None else logprobs[begin:end],
        )
    text = delta.text
    for begin in range(0, len(text) - LONG_TEXT, LONG_TEXT):
        yield SequenceDelta(index=delta.index, text=text[begin : begin + LONG_TEXT])
    told = max(0, -(-len(text) // LONG_TEXT) - 1) * LONG_TEXT
    yield msgspec.structs.replace(
        delta, text=text[told:], token_ids=[], logprobs=None if logprobs is None else []
    )
