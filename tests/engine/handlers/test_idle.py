"""A model that nobody asks for gives its memory back, and is back for the next request."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from penstock.protocol.from_frontend import CallWorkers, PutToSleep, SetPaused, WakeUp
from penstock_engine.metrics.figures import snapshot
from tests.engine.handlers.test_pause import finish
from tests.engine.handlers.test_sleep import fall_asleep, sleeping
from tests.engine.harness import Harness
from tests.engine.walked_harness import Seeded, drawn_options
from tests.engine.walker import Walker
from tests.engine.walks import recorded, replayed


@pytest.fixture
def h() -> Harness:
    h = Harness(idle_sleep_minutes=2.0, idle_sleep_level=2)
    h.connect()
    h.start_worker(life="w")
    return h


def later(h: Harness, minutes: float) -> None:
    """Lets time pass as the process does: no earlier than is due, and then at once."""
    end = h.now + 60 * minutes
    while h.now < end:
        h.now = min(end, max(h.now + 1e-3, h.core.next_deadline()))
        h.settle()


def test_it_sleeps_after_its_minutes_and_the_next_request_wakes_it(h: Harness) -> None:
    (front,) = h.fronts
    first = h.submit(front, [7] * 5, max_tokens=4, ignore_eos=True)
    h.run()
    later(h, 1.9)
    assert sleeping(h) == (0, False)
    later(h, 0.2)
    assert sleeping(h) == (2, False)
    fall_asleep(h)
    later(h, 12)
    assert sleeping(h) == (2, True)
    assert front.status is not None
    assert front.status.ready
    assert h.core.state.sleep.noted == 0, "another life needn't wait for who wakes it"
    second = h.submit(front, [7] * 5, max_tokens=4, ignore_eos=True)
    h.settle()
    assert sleeping(h) == (0, False)
    assert front.status.ready, "requests are taken, and wait"
    assert snapshot(h.core, h.now, 0.0, 0.0).unready == ""
    h.start_worker(life="w")
    h.run()
    assert finish(first) == finish(second) == "length"  # The harness compares the tokens.
    assert h.core.state.counts.worker_deaths == 0


def test_a_model_that_can_not_be_loaded_again_does_not_pass_for_ready(h: Harness) -> None:
    (front,) = h.fronts
    later(h, 2.1)
    fall_asleep(h)
    h.submit(front, [7] * 5, max_tokens=4)
    h.settle()
    assert front.status is not None
    assert front.status.ready
    later(h, 11)
    assert not front.status.ready
    h.start_worker(life="w")
    assert front.status.ready


def test_work_of_any_kind_keeps_it_awake(h: Harness) -> None:
    (front,) = h.fronts
    open_one = h.submit(front, [7] * 5, max_tokens=9, ignore_eos=True)
    later(h, 5)
    assert sleeping(h)[0] == 0
    h.run()
    assert finish(open_one) == "length"
    later(h, 2.1)
    fall_asleep(h)
    h.send(front, CallWorkers(1, "name", b"", 30.0))
    h.settle()
    assert sleeping(h) == (0, False)


def test_what_an_operator_does_stays(h: Harness) -> None:
    (front,) = h.fronts
    h.send(front, SetPaused(True))
    later(h, 5)
    assert sleeping(h)[0] == 0
    h.send(front, SetPaused(False))
    later(h, 2.1)
    fall_asleep(h)
    h.send(front, PutToSleep(1))  # From now on somebody's wish.
    assert h.core.state.sleep.noted == 2
    request = h.submit(front, [7] * 5, max_tokens=4, ignore_eos=True)
    later(h, 1)
    assert sleeping(h) == (2, True)
    h.send(front, WakeUp())
    h.settle()
    h.start_worker(life="w")
    h.run()
    assert finish(request) == "length"


def test_who_is_woken_by_hand_stays_awake_for_its_minutes(h: Harness) -> None:
    (front,) = h.fronts
    later(h, 2.1)
    fall_asleep(h)
    h.send(front, WakeUp())
    h.settle()
    h.start_worker(life="w")
    later(h, 1.9)
    assert sleeping(h)[0] == 0
    later(h, 0.2)
    assert sleeping(h)[0] == 2


def test_without_minutes_it_never_sleeps() -> None:
    h = Harness()
    h.connect()
    h.start_worker(life="w")
    h.now += 1e6
    h.settle()
    assert sleeping(h)[0] == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_any_history_keeps_the_books(seed: int) -> None:
    choose = Seeded(seed)
    h = Harness(**drawn_options(choose), idle_sleep_minutes=0.01)
    walker, dozed = Walker(h, choose), 0
    walker.connect()
    for _ in range(1500):
        awake = h.core.state.sleep.level == 0
        walker.walk()
        if choose.whole(0, 9) == 0:
            h.now += 1.0
            h.settle()
        dozed += awake and h.core.state.sleep.dozes
    assert dozed > 1
    h.core._idle[0]._seconds = math.inf  # It stays awake for the end.
    h.core.state.sleep.wake(())
    walker.end()


def test_it_is_recorded(tmp_path: Path) -> None:
    h = Harness(idle_sleep_minutes=2.0)
    with recorded(h, tmp_path):
        front = h.connect()
        h.start_worker(life="w")
        later(h, 2.1)
        fall_asleep(h)
        h.submit(front, [3] * 5, max_tokens=6, ignore_eos=True)
        h.settle()
        h.start_worker(life="w")
        h.run()
    assert replayed(tmp_path) > 0
