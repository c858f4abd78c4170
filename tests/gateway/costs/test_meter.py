"""The meter notices what keeps a loop busy, and nothing else."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from testing.costs.metered_loop import MeteredLoop, Turn, watch


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def worst_of(work: Callable[[], Coroutine[Any, Any, None]]) -> Turn:
    loop = MeteredLoop()
    try:
        loop.run_until_complete(work())
        return loop.meter.take()[0]
    finally:
        loop.close()


def test_a_long_turn_is_told_with_what_ran() -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        burn(0.03)
        await asyncio.sleep(0)

    turn = worst_of(work)
    assert 0.03 <= turn.seconds < 0.06
    assert "work" in turn.slowest


def test_what_is_ready_together_adds_up() -> None:
    async def part() -> None:
        burn(0.01)

    async def work() -> None:
        await asyncio.gather(*(part() for _ in range(4)))

    turn = worst_of(work)
    assert 0.04 <= turn.seconds < 0.08
    assert turn.handles >= 4


def test_pieces_with_a_turn_between_do_not() -> None:
    async def work() -> None:
        for _ in range(5):
            burn(0.01)
            await asyncio.sleep(0)

    assert 0.01 <= worst_of(work).seconds < 0.03


def test_waiting_and_other_threads_do_not_count() -> None:
    async def work() -> None:
        time.sleep(0.05)
        await asyncio.to_thread(burn, 0.05)

    assert worst_of(work).seconds < 0.03


def test_the_longest_is_told_once() -> None:
    loop = MeteredLoop()
    try:
        loop.run_until_complete(asyncio.to_thread(burn, 0.0))
        loop.call_soon(burn, 0.02)
        loop.run_until_complete(asyncio.sleep(0))
        assert loop.meter.take()[0].seconds >= 0.02
        assert loop.meter.take()[0].seconds == 0.0
    finally:
        loop.close()


def test_where_a_long_turn_is_can_be_asked_while_it_lasts() -> None:
    loop, found = MeteredLoop(), list[Turn]()
    watch(loop.meter)

    def ask() -> None:
        while not loop.meter.found and loop.meter.begun:
            time.sleep(0.001)
        found.append(loop.meter.take()[0])

    def stand() -> None:
        asking = threading.Thread(target=ask)
        asking.start()
        burn(0.2)
        asking.join()

    try:
        loop.call_soon(stand)
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()
    assert found[0].seconds > 0
    assert "stand" in found[0].slowest
