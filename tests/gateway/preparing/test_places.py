"""Places that tenants share."""

from __future__ import annotations

import asyncio

import pytest

from penstock_gateway.preparing.places import TenantPlace, TenantPlaces


def taken(places: TenantPlaces, name: str) -> int:
    """As many as the tenant gets."""
    return sum(iter(lambda: places.take(name), False))


def test_none_gets_all_of_them() -> None:
    places = TenantPlaces(12)
    assert [taken(places, name) for name in "abc"] == [6, 3, 2]
    assert places.take("d")
    assert not places.take("e"), "there is none"


async def test_a_place_that_is_given_back_is_whose_turn_it_is() -> None:
    places = TenantPlaces(4)
    assert [taken(places, name) for name in "abc"] == [2, 1, 1]
    order: list[str] = []

    async def wait(name: str) -> None:
        place = TenantPlace(places, name)
        await place.wait(5)
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
    places = TenantPlaces(2)
    assert [taken(places, name) for name in "ab"] == [1, 1]
    with pytest.raises(TimeoutError):
        await places.wait("c", 0.01)
    left = asyncio.create_task(places.wait("c", 5))
    called = asyncio.create_task(places.wait("d", 5))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.sleep(0)
    places.leave("a")
    called.cancel()  # When it was called already.
    await asyncio.wait([left, called])
    assert places.take("c")
