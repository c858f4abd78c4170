"""Places that tenants share: few at once, tenants one after the other."""

from __future__ import annotations

import asyncio

import pytest

from penstock.request.tenant_places import (
    TenantPlace,
    TenantPlaces,
    any_free,
    fewer_than_free,
    one_each,
)

pytestmark = pytest.mark.timeout(30)


class Line:
    """Tenants that take a turn each; `order`: whose came, one after the other."""

    def __init__(self, turns: TenantPlaces) -> None:
        self.turns = turns
        self.order: list[str] = []

    async def join(self, *tenants: str) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self._take(tenant)) for tenant in tenants]
        await asyncio.sleep(0)
        return tasks

    async def _take(self, tenant: str) -> None:
        await self.turns.enter(tenant)
        self.order.append(tenant)

    async def give(self, *tenants: str) -> None:
        for tenant in tenants:
            self.turns.leave(tenant)
            await asyncio.sleep(0)


async def test_each_tenant_has_its_turn() -> None:
    line = Line(TenantPlaces(2, any_free))
    tasks = await line.join(*"aaaaaa", "b", "c", "b")
    assert line.order == ["a", "a"]
    await line.give(*"aaabcab")
    assert "".join(line.order[2:]) == "abcabaa"
    await asyncio.gather(*tasks)
    await line.give("a", "a")
    await asyncio.gather(*await line.join("d", "d"))
    assert line.turns.waiting == 0


async def test_who_leaves_takes_no_turn_along() -> None:
    line = Line(TenantPlaces(1, any_free))
    tasks = await line.join("a", "b", "c", "d")
    tasks[1].cancel()
    await asyncio.wait({tasks[1]})
    assert line.turns.waiting == 2
    line.turns.leave("a")
    tasks[2].cancel()  # It has its turn by now, and doesn't know it.
    await asyncio.wait({tasks[2]})
    await tasks[3]
    assert line.order == ["a", "d"]
    both = await line.join("e", "e")
    for task in both:
        task.cancel()
    line.turns.leave("d")  # Before they could leave.
    await asyncio.wait(both)
    assert line.turns.waiting == 0
    await line.turns.enter("f")
    assert not line.turns._waiting


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Work:
    """Begins in turn, and ends when it is told to."""

    def __init__(self) -> None:
        self.turns = TenantPlaces(2, one_each)
        self.begun: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}

    def ask(self, name: str) -> asyncio.Task[None]:
        self.ends[name] = asyncio.Event()
        return asyncio.create_task(self._do(name))

    async def _do(self, name: str) -> None:
        async with self.turns.place(name[0]):
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
    async with asyncio.timeout(5), work.turns.place("m"):
        pass


def taken(places: TenantPlaces, name: str) -> int:
    """As many as the tenant gets."""
    return sum(iter(lambda: places.take(name), False))


def test_none_gets_all_of_them() -> None:
    places = TenantPlaces(12, fewer_than_free)
    assert [taken(places, name) for name in "abc"] == [6, 3, 2]
    assert places.take("d")
    assert not places.take("e"), "there is none"


async def test_a_place_that_is_given_back_is_whose_turn_it_is() -> None:
    places = TenantPlaces(4, fewer_than_free)
    assert [taken(places, name) for name in "abc"] == [2, 1, 1]
    order: list[str] = []

    async def wait(name: str) -> None:
        place = TenantPlace(places, name)
        await place.enter(5)
        order.append(name)
        place.leave()

    waiting = []
    for name in ("a", "a", "d", "e"):
        waiting.append(asyncio.create_task(wait(name)))
        await asyncio.sleep(0)
    assert not places.take("d"), "nobody passes those that wait"
    places.leave("b")
    await asyncio.gather(*waiting[2:])
    assert order == ["d", "e"], "a has as many as it may"
    places.leave("a")
    await asyncio.gather(*waiting)
    assert order == ["d", "e", "a", "a"]


async def test_who_waits_no_longer_takes_none() -> None:
    places = TenantPlaces(2, fewer_than_free)
    assert [taken(places, name) for name in "ab"] == [1, 1]
    with pytest.raises(TimeoutError):
        await places.enter("c", 0.01)
    left = asyncio.create_task(places.enter("c", 5))
    called = asyncio.create_task(places.enter("d", 5))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.sleep(0)
    places.leave("a")
    called.cancel()  # When it was called already.
    await asyncio.wait([left, called])
    assert places.take("c")
