"""Ended streams are cleared away some at a time, and none is forgotten."""

from __future__ import annotations

import asyncio

from penstock_gateway.generate.clearing import Clearing


async def test_so_many_go_on_in_a_turn_in_their_order() -> None:
    turns, order = Clearing(3), []
    per_turn = [0]

    async def one(number: int) -> None:
        await turns.wait()
        order.append(number)
        per_turn[-1] += 1

    tasks = [asyncio.create_task(one(number)) for number in range(20)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        per_turn.append(0)
    assert order == list(range(20))
    assert max(per_turn) == 3
    for _ in range(5):
        await asyncio.sleep(0)
    await asyncio.wait_for(turns.wait(), 10)  # Also after turns in which nobody came.


async def test_who_is_cancelled_holds_nobody_up() -> None:
    turns = Clearing(1)
    tasks = [asyncio.create_task(turns.wait()) for _ in range(10)]
    await asyncio.sleep(0)
    for task in tasks[1:9]:
        task.cancel()
    done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert [each is None for each in done] == [True] + 8 * [False] + [True]
