"""A runner's parts that are timed: as they were, and their time is that which went by."""

from __future__ import annotations

import threading
import time

import pytest

from penstock_worker.metrics.phases import Phases, Unwatched


class Part:
    """One method to be timed, and what is not to be touched."""

    def __init__(self) -> None:
        self.layers_done = 0

    def work(self, seconds: float, *, result: str = "done") -> str:
        time.sleep(seconds)
        self.layers_done += 1
        return result

    def fail(self) -> None:
        time.sleep(0.02)
        raise RuntimeError("it broke")


def test_a_watched_part_does_what_it_did() -> None:
    begun = time.perf_counter()
    phases, part = Phases(), Part()
    watched = phases.watch(part, "work", "forward")
    assert watched.work(0.03) == "done"
    assert watched.work(0.03, result="other") == "other"
    assert watched.layers_done == part.layers_done == 2
    assert 0.06 <= phases.seconds["forward"] < time.perf_counter() - begun
    assert sum(phases.seconds.values()) == phases.seconds["forward"]


def test_what_fails_took_time_too() -> None:
    phases = Phases()
    with pytest.raises(RuntimeError, match="it broke"):
        phases.watch(Part(), "fail", "sample").fail()
    assert phases.seconds["sample"] >= 0.02


def test_threads_count_their_own_time() -> None:
    phases = Phases()
    watched = phases.watch(Part(), "work", "masks")
    threads = [threading.Thread(target=watched.work, args=(0.001,)) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert phases.seconds["masks"] >= 0.064


def test_unwatched_parts_stay_what_they_are() -> None:
    part = Part()
    assert Unwatched().watch(part, "work", "forward") is part
