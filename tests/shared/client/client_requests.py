"""What the tests of the client do with their requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.client import Generation


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def collect(generation: Generation) -> dict[int, tuple[str, list[int], str, object]]:
    """(text, ids, finish reason, stop reason) of each sequence, deltas joined."""
    result: dict[int, tuple[str, list[int], str, object]] = {}
    async for deltas in generation:
        for delta in deltas:
            text, ids, _, _ = result.get(delta.index, ("", [], "", None))
            result[delta.index] = (
                text + delta.text,
                ids + delta.token_ids,
                delta.finish_reason or "",
                delta.stop_reason,
            )
    return result
