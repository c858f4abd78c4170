"""How fast weights come to a device, by a queue of which the test says how fast it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock_worker.device import copy_rates as module
from penstock_worker.device.copy_rates import CopyRates, copy_rates
from penstock_worker.device.filling import PinnedFilling
from penstock_worker.device.side_stream import AtOnceBeside
from tests.met import met

pytestmark = pytest.mark.timeout(120)


@given(st.lists(st.integers(0, 50), max_size=7), st.integers(1, 5))
def test_any_threads_fill_the_same(sizes: list[int], threads: int) -> None:
    random = np.random.default_rng(0)
    pieces = [random.integers(0, 256, size, dtype=np.uint8) for size in sizes]
    target = np.zeros(sum(sizes) + 3, dtype=np.uint8)
    filling = PinnedFilling(5)
    filling.threads = threads
    assert filling.fill(target, pieces) == sum(sizes)
    assert target.tobytes() == b"".join(each.tobytes() for each in pieces) + bytes(3)
    met("a thread begins within a piece", threads > 1 and len(sizes) == 1)


class Mark:
    """Each copy takes a second of the device."""

    def __init__(self, at: float) -> None:
        self.at = at

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, later: Mark) -> float:
        return 1000 * (later.at - self.at)


class Paced(AtOnceBeside):
    """A queue whose next mark is a second later, or a multiple."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now = seconds, 0.0

    def mark(self) -> Any:
        self.now += self.seconds
        return Mark(self.now)

    def computed(self) -> Any:
        return Mark(self.now)

    @contextmanager
    def queueing(self, after: Any) -> Iterator[None]:
        yield


class Threads(PinnedFilling):
    """Fills 100 bytes a second for each thread, three at most, by the test's clock."""

    def __init__(self, most: int, clock: Clock) -> None:
        super().__init__(most)
        self.clock = clock

    def fill(self, target: np.ndarray, pieces: Any) -> int:
        self.clock.now += len(target) / (100 * min(3, self.threads))
        return len(target)


class Clock:
    """What the module reads the time by."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def measured(clock: Clock, most: int, seconds: float) -> tuple[CopyRates | None, Threads]:
    memory, filling = torch.zeros(1000, dtype=torch.uint8), Threads(most, clock)
    sources = [[np.zeros(1000, dtype=np.uint8)]]
    found = copy_rates(memory, memory.clone(), Paced(seconds), filling, sources)
    return found, filling


@pytest.mark.parametrize(
    ("seconds", "most", "threads", "filled"),
    [(20, 8, 1, 100), (6, 8, 2, 200), (5, 8, 2, 200), (1, 8, 4, 300), (1, 2, 2, 200)],
)
def test_as_many_threads_as_the_bus_is_worth(
    clock: Clock, seconds: float, most: int, threads: int, filled: float
) -> None:
    """50 to 1000 bytes a second. Where no number reaches it, the fastest, of those the fewest."""
    found, filling = measured(clock, most, seconds)
    assert found is not None
    assert [found.to_device, found.from_device] == pytest.approx([1000 / seconds] * 2)
    assert found.filled == pytest.approx(filled)
    assert found.experts == pytest.approx(min(1000 / seconds, filled))
    assert found.threads == filling.threads == threads


def test_a_device_that_tells_no_time(clock: Clock) -> None:
    """As Triton's interpreter: nothing is known, and one thread fills."""
    found, filling = measured(clock, 8, 0.0)
    assert found is None
    assert filling.threads == 1


def test_measuring_is_bounded(clock: Clock) -> None:
    """One copy of each kind, where each takes long."""
    memory, copies = torch.zeros(1000, dtype=torch.uint8), []

    class Counted(Paced):
        def computed(self) -> Any:
            copies.append(clock.now)
            clock.now += 5.0
            return super().computed()

    sources = [[np.zeros(1000, dtype=np.uint8)]]
    copy_rates(memory, memory.clone(), Counted(5.0), Threads(1, clock), sources)
    assert len(copies) == 2
