"""What happens to limits while their storage is away, by a storage of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_gateway.keys import shared_windows, windows
from penstock_gateway.keys.shared_windows import MINUTE, SLOT, CountFailed, SharedWindows, Unsettled
from penstock_gateway.keys.windows import (
    LastWindows,
    LimitCheck,
    LimitState,
    ProcessWindows,
    StorageDown,
    Window,
)
from tests.met import met

pytestmark = pytest.mark.timeout(60)

ONE = [LimitCheck("requests/a", 3, 1)]
LOOK = [LimitCheck("requests/a", 3, 0)]


class Storage:
    """Counts as a process does, and fails when it is told to."""

    def __init__(self) -> None:
        self.counted = ProcessWindows()
        self.asked = 0
        self.added: list[set[str]] = []
        self.errors: dict[str, Exception] = {}
        self.fails = False
        self.failure: Exception | None = None
        self.answers = asyncio.Event()
        self.answers.set()

    async def check(self, checks: Sequence[LimitCheck]) -> list[LimitState]:
        self.asked += 1
        await self._answer()
        if self.failure is not None:
            raise self.failure
        return await self.counted.check(checks)

    async def add(self, amounts: dict[str, int]) -> dict[str, Exception]:
        self.added.append(set(amounts))
        await self._answer()
        for name in amounts.keys() - self.errors.keys():
            self.counted.add(name, amounts[name])
        return {name: self.errors[name] for name in amounts.keys() & self.errors.keys()}

    async def close(self) -> None:
        pass

    async def used(self, name: str) -> int:
        return (await self.counted.check([LimitCheck(name, 1, 0)]))[0].window.used

    async def _answer(self) -> None:
        await self.answers.wait()
        if self.fails:
            raise ConnectionError("gone")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_windows, "PROBE_EVERY", 0.01)


async def back(shared: SharedWindows) -> None:
    async with asyncio.timeout(30):
        while shared.down or shared.uncounted:
            await asyncio.sleep(0.001)


async def test_one_waits_and_the_others_do_not() -> None:
    storage = Storage()
    shared = SharedWindows(storage, "refuse")
    assert (await shared.check(ONE))[0].allowed
    storage.fails = True
    storage.answers.clear()
    first = asyncio.create_task(shared.check(ONE))
    while storage.asked < 2:
        await asyncio.sleep(0)
    storage.answers.set()
    with pytest.raises(StorageDown):
        await first
    assert shared.down
    storage.answers.clear()  # Whoever asked it would wait for ever.
    for _ in range(10):
        with pytest.raises(StorageDown):
            await shared.check(ONE)
    assert storage.asked == 2
    storage.fails = False
    storage.answers.set()
    await back(shared)
    assert (await shared.check(ONE))[0].window.used == 2
    await shared.close()


async def test_each_process_counts_on_from_what_it_was_told_last() -> None:
    storage = Storage()
    one, two = SharedWindows(storage, "local"), SharedWindows(storage, "local")
    for each in (one, two):
        assert (await each.check(ONE))[0].allowed
    storage.fails = True
    # `one` has seen its own request, `two` both.
    assert [(await one.check(ONE))[0].allowed for _ in range(3)] == [True, True, False]
    assert [(await two.check(ONE))[0].allowed for _ in range(2)] == [True, False]
    assert (await two.check(LOOK))[0].window.used == 3
    assert (await two.check([LimitCheck("requests/b", 3, 1)]))[0].window.used == 1
    storage.fails = False
    for each in (one, two):
        await back(each)
    assert await storage.used("requests/a") == 2 + 2 + 1
    assert await storage.used("requests/b") == 1
    assert (await one.check(ONE))[0].allowed is False
    for each in (one, two):
        await each.close()


@pytest.mark.parametrize("fallback", ["refuse", "local"])
async def test_output_that_could_not_be_counted_is_counted_when_it_is_back(fallback: str) -> None:
    storage = Storage()
    shared = SharedWindows(storage, fallback)  # type: ignore[arg-type]
    storage.fails = True
    for _ in range(3):
        shared.add("tokens/a", 100)
    while not shared.down:
        await asyncio.sleep(0.001)
    shared.add("tokens/a", 7)
    shared.add("tokens/b", 8)
    assert shared.uncounted == 315
    if fallback == "local":
        assert (await shared.check([LimitCheck("tokens/a", 400, 0)]))[0].window.used == 307
    storage.fails = False
    await back(shared)
    assert (await storage.used("tokens/a"), await storage.used("tokens/b")) == (307, 8)
    assert shared.lost == 0
    await shared.close()


async def test_one_count_that_fails_multiplies_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two names has its place on a shard that is down."""
    slept: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        slept.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(shared_windows.asyncio, "sleep", noted)
    storage = Storage()
    shared = SharedWindows(storage, "refuse")
    storage.errors["tokens/b"] = ConnectionError("gone")
    shared.add("tokens/a", 5)
    shared.add("tokens/b", 7)
    async with asyncio.timeout(30):
        while len(storage.added) < 6:
            await sleep(0.001)
    assert storage.added[:5] == [
        {"tokens/a", "tokens/b"},
        {"probe"},
        {"tokens/b"},
        {"probe"},
        {"tokens/b"},
    ]
    assert slept.count(shared_windows.PROBE_EVERY) >= storage.added.count({"probe"})
    storage.errors.clear()
    await back(shared)
    assert (await storage.used("tokens/a"), await storage.used("tokens/b")) == (5, 7)
    assert shared.lost == 0
    await shared.close()


@pytest.mark.parametrize("fallback", ["refuse", "local"])
async def test_a_count_with_an_error_of_its_own_is_no_outage(fallback: str) -> None:
    storage = Storage()
    shared = SharedWindows(storage, fallback)  # type: ignore[arg-type]
    storage.errors["tokens/b"] = CountFailed("of another type")
    shared.add("tokens/a", 5)
    shared.add("tokens/b", 7)
    async with asyncio.timeout(30):
        while shared.uncounted:
            await asyncio.sleep(0.001)
    assert storage.added == [{"tokens/a", "tokens/b"}]
    assert (await storage.used("tokens/a"), shared.lost, shared.down) == (5, 7, False)
    storage.failure = CountFailed("of another type")
    if fallback == "refuse":
        with pytest.raises(StorageDown):
            await shared.check(ONE)
    else:
        assert [(await shared.check(ONE))[0].allowed for _ in range(4)] == [True] * 3 + [False]
    assert (shared.down, shared.uncounted) == (False, 0)
    storage.failure = None
    assert (await shared.check(ONE))[0].allowed
    await shared.close()


async def test_what_ended_last_is_counted_before_the_process_leaves() -> None:
    storage = Storage()
    shared = SharedWindows(storage, "refuse")
    shared.add("tokens/a", 5)
    await shared.close()
    assert await storage.used("tokens/a") == 5


def test_what_is_kept_too_long_is_lost_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(shared_windows, "time", SimpleNamespace(monotonic=lambda: now[0]))
    kept = Unsettled()
    kept.add("a", 1)
    now[0] += MINUTE
    kept.add("b", 2)
    assert (kept.total, kept.lost) == (3, 0)
    now[0] += SLOT
    assert kept.taken()[1] == {"b": 2}
    assert (kept.total, kept.lost) == (0, 1)
    assert kept.taken() == (0, {})


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_windows, "MOST_KEPT", 10)
    monkeypatch.setattr(shared_windows, "SETTLED_AT_ONCE", 4)
    kept = Unsettled()
    for number in range(15):
        kept.add(f"a{number}", 1)
    assert (kept.total, kept.lost) == (10, 5)
    parts = []
    while amounts := kept.taken()[1]:
        parts.append(len(amounts))
    assert sum(parts) == 10
    assert max(parts) == 4


def test_names_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "MOST_NAMES", 2)
    last = LastWindows()
    for name in "abab":
        last.take(LimitCheck(name, 3, 1))
    last.take(LimitCheck("c", 3, 1))
    assert last.take(LimitCheck("b", 3, 0)).window.used == 2
    assert last.take(LimitCheck("a", 3, 0)).window.used == 0


@given(
    before=st.integers(0, 20),
    now=st.integers(0, 20),
    left=st.integers(1, MINUTE),
    seconds=st.lists(st.integers(0, 50), min_size=1, max_size=4),
)
def test_a_window_later(before: int, now: int, left: int, seconds: list[int]) -> None:
    """Against the definition; and whether it is asked once or several times changes nothing."""
    window = Window(before, float(left), now, float(left))
    for each in seconds:
        window = window.after(float(each))
    passed = sum(seconds)
    if passed < left:
        used = before * (left - passed) / MINUTE + now
    else:
        used = now * max(0, MINUTE + left - passed) / MINUTE
    met("the next minute has begun", left <= passed < left + MINUTE)
    met("nothing of it counts any more", passed >= left + MINUTE)
    assert window.used == int(used)
