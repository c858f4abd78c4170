"""Vectors as JSON, a few numbers at a time: all of a large reply at once would hold up others."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from penstock.client.pool_request import PoolResult
from penstock_gateway.generate.chunked_reply import JsonList, Pace, Splices, paced
from penstock_gateway.generate.reply import encoder

NUMBERS = 4096
"""Numbers that are written at once: a third of a millisecond."""
BASE64_BYTES = 3 << 16
"""Bytes that are written at once; of three each four letters are made, without a rest."""
NUMBERS_PER_TOKEN = 64
"""Take as long to write as a token with its log-probabilities."""


async def vector_list(
    results: Sequence[PoolResult],
    splices: Splices,
    shown: Callable[[int, Any], object],
    *,
    base64: bool = False,
) -> Any:
    """What stands in a reply for the list of these vectors.

    splices: of the reply.  shown: an element of the list, of its index and its vector.
    base64: of little-endian float32, instead of numbers.
    """
    numbers = sum(len(result.vectors.data) for result in results) // 4
    async with paced(numbers // NUMBERS_PER_TOKEN) as pace:
        made = JsonList()
        for index, result in enumerate(results):
            vector = _in_base64(result, pace) if base64 else _in_numbers(result, pace)
            inner = Splices()
            element = shown(index, inner.put([piece async for piece in vector]))
            made.add_written(inner.spliced(encoder.encode(element)))
            await pace.rest()
    return splices.put(made.pieces())


async def _in_numbers(result: PoolResult, pace: Pace) -> AsyncIterator[bytes]:
    """Yields a vector as a list of numbers, or a list for each row."""
    if len(result.vectors.shape) == 1:
        for piece in await _list(result, 0, result.size, pace):
            yield piece
        return
    rows, size = result.vectors.shape[0], result.size
    made = JsonList()
    for row in range(rows):
        made.add_written(await _list(result, row * size, (row + 1) * size, pace))
    for piece in made.pieces():
        yield piece


async def _list(result: PoolResult, begin: int, end: int, pace: Pace) -> list[bytes]:
    made = JsonList()
    for at in range(begin, end, NUMBERS):
        made.add(result.numbers(at, min(end, at + NUMBERS)))
        await pace.rest()
    return made.pieces()


async def _in_base64(result: PoolResult, pace: Pace) -> AsyncIterator[bytes]:
    data = memoryview(result.vectors.data)
    yield b'"'
    for at in range(0, len(data), BASE64_BYTES):
        yield b64encode(data[at : at + BASE64_BYTES])
        await pace.rest()
    yield b'"'
