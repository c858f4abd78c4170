"""Long texts wait for their turn: few at once, one of each tenant, tenants one after the other."""

from __future__ import annotations

import asyncio

import pytest

from penstock_gateway.preparing.turns import TenantTurns

pytestmark = pytest.mark.timeout(30)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Work:
    """Begins in turn, and ends when it is told to."""

    def __init__(self) -> None:
        self.turns, self.begun = TenantTurns(2), list[str]()
        self.ends: dict[str, asyncio.Event] = {}

    def ask(self, name: str) -> asyncio.Task[None]:
        self.ends[name] = asyncio.Event()
        return asyncio.create_task(self._do(name))

    async def _do(self, name: str) -> None:
        async with self.turns.turn(name[0]):
            self.begun.append(name)
            await self.ends[name].wait()


async def test_a_tenant_has_one_turn_at_a_time_and_others_come_between() -> None:
    work = Work()
    tasks = [work.ask(name) for name in ("m1", "m2", "m3", "a1", "b1")]
    await settle()
    assert work.begun == ["m1", "a1"]
    work.ends["m1"].set()
    await settle()
    assert work.begun[2:] == ["m2"]
    work.ends["m2"].set()
    await settle()
    assert work.begun[3:] == ["b1"]
    for end in work.ends.values():
        end.set()
    await asyncio.gather(*tasks)
    assert work.begun[4:] == ["m3"]


async def test_who_leaves_the_queue_takes_no_turn() -> None:
    work = Work()
    first, gone, last = (work.ask(name) for name in ("m1", "m2", "m3"))
    await settle()
    gone.cancel()
    work.ends["m1"].set()
    await settle()
    assert work.begun == ["m1", "m3"]
    work.ends["m3"].set()
    await asyncio.gather(first, last)
    async with asyncio.timeout(5), work.turns.turn("m"):
        pass
