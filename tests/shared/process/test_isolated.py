"""An exchange with a process that stands still ends soon, and with one that works it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from penstock.process import isolated
from penstock.process.isolated import (
    BLOCKED,
    STANDSTILL,
    STARTS,
    Frozen,
    IsolatedProcess,
    Standstill,
    Until,
    most_of,
    unfrozen,
)

pytestmark = pytest.mark.timeout(60)

FOREVER = 3600.0
"""Longer than a test may take."""
WORKING = "while True: pass"
SELDOM = """
import time
while True:
    until = time.process_time() + 0.001
    while time.process_time() < until: pass
    time.sleep(0.02)
"""
"""Works for a twentieth of the time at most."""
SHORT = 0.6
WAITING = "import sys; sys.stdin.read()"


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated.Standstill, "every", 0.02)


@contextlib.contextmanager
def running(program: str) -> Iterator[int]:
    """The pid of a process that runs it."""
    with subprocess.Popen([sys.executable, "-S", "-c", program], stdin=subprocess.PIPE) as process:
        try:
            yield process.pid
        finally:
            process.kill()


async def test_one_that_was_stopped_is_found_long_before_its_time_is_over() -> None:
    with running(WORKING) as pid:
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(Frozen):
            async with unfrozen(pid, FOREVER):
                await asyncio.sleep(FOREVER)


async def test_one_that_works_is_left_alone() -> None:
    """While it uses some time, more looks are taken than one that stood still would get."""
    with running(WORKING) as pid:
        async with unfrozen(pid, FOREVER):
            begun = isolated.cpu_seconds(pid)
            assert begun is not None
            while (isolated.cpu_seconds(pid) or 0) < begun + 0.5:
                await asyncio.sleep(0.02)


async def test_one_that_gets_little_of_a_busy_machine_is_left_alone() -> None:
    """Its bound is processor time: by the clock it may take longer."""
    with running(SELDOM) as pid:
        async with unfrozen(pid, SHORT):
            begun, clock = isolated.cpu_seconds(pid) or 0.0, time.monotonic()
            while time.monotonic() < clock + 2 * SHORT:
                assert (isolated.cpu_seconds(pid) or 0.0) < begun + SHORT
                await asyncio.sleep(0.02)


def test_a_thread_that_asks_one_waits_as_long() -> None:
    with running(SELDOM) as pid:
        until, clock = Until(Standstill(pid, SHORT)), time.monotonic()
        while time.monotonic() < clock + 2 * SHORT:
            time.sleep(min(until.wait(), 0.02))


def test_a_thread_gives_one_up_that_has_used_its_time() -> None:
    with running(WORKING) as pid:
        until = Until(Standstill(pid, 0.1))
        with pytest.raises(Frozen):
            wait_on(until)


def wait_on(until: Until) -> None:
    """As long as it may be waited."""
    while True:
        time.sleep(min(until.wait(), 0.02))


async def test_its_time_is_over_though_it_works() -> None:
    with running(WORKING) as pid, pytest.raises(Frozen):
        async with unfrozen(pid, 0.1):
            await asyncio.sleep(FOREVER)


async def test_the_time_in_which_it_waits_for_this_one_does_not_count() -> None:
    """It waits for an answer for 30 looks, and stands still after that."""
    looks = iter(range(30))

    def rests() -> bool:
        return next(looks, None) is not None

    with running(WAITING) as pid, pytest.raises(Frozen):
        async with unfrozen(pid, FOREVER, rests):
            await asyncio.sleep(FOREVER)
    assert next(looks, None) is None


async def test_whatever_it_does_the_clock_ends_an_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "LONGEST", SHORT)
    with running(WORKING) as pid, pytest.raises(Frozen):
        async with unfrozen(pid, FOREVER):
            await asyncio.sleep(FOREVER)


def test_the_clock_ends_a_threads_exchange_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "LONGEST", SHORT)
    with running(WORKING) as pid, pytest.raises(Frozen):
        wait_on(Until(Standstill(pid, FOREVER)))


def looks_until_frozen(monkeypatch: pytest.MonkeyPatch, state: str) -> int:
    """How often a process that uses no time and is in such a state is looked at."""
    monkeypatch.setattr(isolated, "cpu_seconds", lambda pid: 1.0)
    monkeypatch.setattr(isolated, "state_of", lambda pid: state)
    standstill = Standstill(os.getpid())
    return next(i for i in range(1, 10_000) if standstill.look())


def test_one_that_waits_for_a_disk_is_given_up_after_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asleep = looks_until_frozen(monkeypatch, "S")
    assert looks_until_frozen(monkeypatch, "D") == pytest.approx(
        asleep * BLOCKED / STANDSTILL, abs=1
    )


def test_one_that_is_ready_to_run_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StopIteration):
        looks_until_frozen(monkeypatch, "R")


async def test_where_the_system_tells_no_processor_time_the_clock_is_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(isolated, "cpu_seconds", lambda pid: None)
    with running(WORKING) as pid:
        with pytest.raises(Frozen):
            async with unfrozen(pid, SHORT):
                await asyncio.sleep(FOREVER)
        with pytest.raises(Frozen):
            wait_on(Until(Standstill(pid, SHORT)))


class Waiting(IsolatedProcess):
    """One that only its exchanges' bounds are asked of."""

    def __init__(self, pid: int) -> None:
        self._started = False
        self._pid = pid

    @property
    def pid(self) -> int:
        return self._pid


async def test_only_the_first_answer_has_time_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds: list[float] = []

    class Noted(Standstill):
        def __init__(self, pid: int, most: float) -> None:
            bounds.append(most)
            super().__init__(pid, most)

    monkeypatch.setattr(isolated, "Standstill", Noted)
    process = Waiting(os.getpid())
    with pytest.raises(EOFError):
        async with process._bounded(2.0):
            raise EOFError
    for _ in range(2):
        async with process._bounded(2.0):
            pass
    assert bounds == [STARTS + 6.0, STARTS + 6.0, 6.0]
    assert most_of(2.0, started=True) == 6.0
