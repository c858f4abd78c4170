"""The heartbeat itself: it notices what holds a loop up, and not what keeps it waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec
import pytest

from tests.gateway.heartbeat.beating import LATEST, Heartbeat

pytestmark = pytest.mark.timeout(120)


async def late(work: Callable[[], object]) -> float:
    heart = Heartbeat()
    await heart.begin()
    await heart.settle()
    heart.late = 0.0
    result = work()
    if asyncio.iscoroutine(result):
        await result
    await heart.settle()
    await heart.end()
    return heart.late


async def test_a_long_turn_is_seen() -> None:
    def turn() -> None:
        until = time.thread_time() + 2 * LATEST
        while time.thread_time() < until:
            pass

    assert await late(turn) > LATEST


async def test_a_call_in_a_thread_that_keeps_the_lock_is_seen() -> None:
    text = b"[" + b"[]," * 700_000 + b"1]"
    assert await late(lambda: asyncio.to_thread(msgspec.json.decode, text)) > LATEST


async def test_waiting_is_not_taken_for_work() -> None:
    """Others have the processor here."""
    assert await late(lambda: time.sleep(4 * LATEST)) < LATEST


async def test_a_thread_that_gives_the_lock_away_holds_nothing_up() -> None:
    def count() -> None:
        until = time.thread_time() + 4 * LATEST
        while time.thread_time() < until:
            pass

    assert await late(lambda: asyncio.to_thread(count)) < LATEST
