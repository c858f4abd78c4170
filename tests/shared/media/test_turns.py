"""Whose picture is next."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import Limited, Overloaded
from penstock.media.pool import Turns


class Line:
    """Tenants that take a turn each; `order`: whose came, one after the other."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.order: list[str] = []

    async def join(self, *tenants: str) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self._take(tenant)) for tenant in tenants]
        await asyncio.sleep(0)
        return tasks

    async def _take(self, tenant: str) -> None:
        await self.turns.take(tenant)
        self.order.append(tenant)

    async def give(self, count: int) -> None:
        for _ in range(count):
            self.turns.give()
            await asyncio.sleep(0)


async def test_each_tenant_has_its_turn() -> None:
    line = Line(Turns(2))
    tasks = await line.join(*"aaaaaa", "b", "c", "b")
    assert line.order == ["a", "a"]
    await line.give(7)
    assert "".join(line.order[2:]) == "abcabaa"
    await asyncio.gather(*tasks)
    await line.give(2)
    await asyncio.gather(*await line.join("d", "d"))
    assert line.turns.waiting == 0


async def test_who_leaves_takes_no_turn_along() -> None:
    line = Line(Turns(1))
    tasks = await line.join("a", "b", "c", "d")
    tasks[1].cancel()
    await asyncio.wait({tasks[1]})
    assert line.turns.waiting == 2
    line.turns.give()
    tasks[2].cancel()  # It has its turn by now, and doesn't know it.
    await asyncio.wait({tasks[2]})
    await tasks[3]
    assert line.order == ["a", "d"]
    both = await line.join("e", "e")
    for task in both:
        task.cancel()
    line.turns.give()  # Before they could leave.
    await asyncio.wait(both)
    assert line.turns.waiting == 0
    await line.turns.take("f")
    assert not line.turns._queues


async def test_few_may_wait() -> None:
    turns = Turns(1, max_waiting=3, max_of_tenant=2)
    line = Line(turns)
    tasks = await line.join("a", "a", "a")
    with pytest.raises(Limited, match="2 media items of this tenant"):
        await turns.take("a")
    tasks += await line.join("b")
    with pytest.raises(Overloaded) as caught:
        await turns.take("c")
    assert not isinstance(caught.value, Limited)
    await line.give(3)
    await asyncio.gather(*tasks)
