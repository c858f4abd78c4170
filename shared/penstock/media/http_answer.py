"""The answer to one GET, as HTTP/1.1 has it (RFC 9112): head, then body, all bounded."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import NamedTuple

MAX_FIELDS = 100
PIECE = 65_536
"""Bytes read at a time."""
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: [^\r\n]*)?\r?\n")
_DIGITS = re.compile(r"\d{1,18}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,12})(?:[ \t]*;[^\r\n]*)?\r?\n")


class BadAnswer(Exception):
    """What came is no answer that is understood here; says why."""


class AnswerHead(NamedTuple):
    """fields: by lower-case name; of several the last."""

    status: int
    fields: dict[str, str]


async def read_head(reader: asyncio.StreamReader) -> AnswerHead:
    """Raises BadAnswer; a line that is too long is a ValueError."""
    found = _STATUS.fullmatch(await reader.readline())
    if found is None:
        raise BadAnswer("the answer isn't HTTP")
    fields: dict[str, str] = {}
    for _ in range(MAX_FIELDS):
        line = await reader.readline()
        if line in (b"\r\n", b"\n"):
            return AnswerHead(int(found[1]), fields)
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon or not line.endswith(b"\n"):
            raise BadAnswer("the answer's head is broken")
        fields[name.strip().lower()] = value.strip()
    raise BadAnswer(f"the answer has more than {MAX_FIELDS} header fields")


async def read_body(
    reader: asyncio.StreamReader, head: AnswerHead, take: Callable[[int], None]
) -> bytes:
    """take: asked for room before bytes are read. Raises BadAnswer, or what `take` raises."""
    if head.fields.get("content-encoding", "identity").lower() != "identity":
        raise BadAnswer("the answer is compressed, which was not asked for")
    if "transfer-encoding" in head.fields:
        if head.fields["transfer-encoding"].lower() != "chunked":
            raise BadAnswer("the answer's transfer encoding is not known")
        return await _chunks(reader, take)
    if "content-length" in head.fields:
        stated = head.fields["content-length"]
        if not _DIGITS.fullmatch(stated):
            raise BadAnswer("the reply's length is not a number")
        size = int(stated)
        take(size)
        return await reader.readexactly(size)
    return await _to_the_end(reader, take)


async def _chunks(reader: asyncio.StreamReader, take: Callable[[int], None]) -> bytes:
    body = bytearray()
    while True:
        found = _CHUNK.fullmatch(await reader.readline())
        if found is None:
            raise BadAnswer("the answer's chunks are broken")
        size = int(found[1], 16)
        if not size:
            return bytes(body)
        take(size)
        body += await reader.readexactly(size)
        if await reader.readline() not in (b"\r\n", b"\n"):
            raise BadAnswer("the answer's chunks are broken")


async def _to_the_end(reader: asyncio.StreamReader, take: Callable[[int], None]) -> bytes:
    body = bytearray()
    while piece := await reader.read(PIECE):
        take(len(piece))
        body += piece
    return bytes(body)
