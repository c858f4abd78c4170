"""How many threads compute a step: on made-up machines, whose steps take as long as they say."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_kernels.cpu.thread_count import LONGEST, MUCH, SHORTEST, WINDOW, ThreadCount
from tests.met import met

Machine = Callable[[int], tuple[float, float]]
"""Maps a number of threads to a step's seconds, and the share of them that each waits."""

QUIET: dict[int, Machine] = {
    most: lambda threads: (0.008 / threads, 0.01) for most in (1, 2, 3, 4, 8, 64)
}


def crowded(free: int) -> Machine:
    """More threads than cores that are free wait for each other's turn."""
    return lambda threads: (0.008 / threads, 0.01) if threads <= free else (0.1, 0.6)


def steps(count: ThreadCount, machine: Machine, number: int, rows: int = 1) -> list[int]:
    """The threads of so many steps."""
    used = []
    for _ in range(number):
        seconds, waited = machine(count.now)
        used.append(count.now)
        count.tell(rows, seconds, waited * count.now * seconds)
    return used


@pytest.mark.parametrize("most", QUIET)
def test_all_threads_on_a_quiet_machine(most: int) -> None:
    assert set(steps(ThreadCount(most), QUIET[most], 500)) == {most}


@pytest.mark.parametrize(("most", "free"), [(2, 1), (4, 3), (4, 1), (8, 6), (8, 1)])
def test_fewer_on_a_crowded_one_and_all_again_when_it_is_quiet(most: int, free: int) -> None:
    count = ThreadCount(most)
    steps(count, crowded(free), 40 * WINDOW * most)
    used = steps(count, crowded(free), 20 * LONGEST)
    assert used.count(free) > 0.97 * len(used), "trials of more are rare"
    steps(count, QUIET[most], 2 * LONGEST * most)
    assert set(steps(count, QUIET[most], 500)) == {most}


def test_one_that_is_not_faster_with_fewer_keeps_all() -> None:
    """They wait, but for what would take as long with fewer: memory, for one."""
    used = steps(ThreadCount(2), lambda threads: (0.01, 0.3), 50 * LONGEST)
    assert used.count(2) > 0.98 * len(used)


def test_one_slow_step_changes_nothing() -> None:
    count = ThreadCount(2)
    for _ in range(50):
        used = steps(count, QUIET[2], 4 * WINDOW)
        used += steps(count, lambda threads: (0.02, 0.3), 1)
        assert set(used) == {2}


def test_steps_of_other_sizes_are_not_compared() -> None:
    """Small steps between large ones make no trial of fewer look faster."""

    def work(rows: int) -> Machine:
        return lambda threads: (rows * (2e-6 if threads == 8 else 2e-5), 0.3)

    count, used = ThreadCount(8), []
    for _ in range(4000):
        for rows in (2048, 2048, 2048, 2048, 128):
            used += steps(count, work(rows), 1, rows)
    assert used.count(8) > 0.9 * len(used)


@pytest.mark.parametrize("most", [2, 8])
def test_all_again_where_steps_of_alike_sizes_never_come(most: int) -> None:
    count, draw = ThreadCount(most), random.Random(0)
    steps(count, crowded(1), 200 * most)
    assert count.now == 1
    used = []
    for _ in range(20_000):
        used += steps(count, QUIET[most], 1, rows=1 << draw.randrange(12))
    assert used.count(most) > 0.9 * len(used)


def test_few_large_steps_bring_all_threads_back() -> None:
    """Each takes so long that a pause of as many as of small ones would last for minutes."""
    count = ThreadCount(2)
    used = steps(count, crowded(1), 40 * LONGEST, rows=2048)
    assert used.count(1) > 0.9 * len(used)
    assert count.now == 1
    used = steps(count, QUIET[2], 100, rows=2048)
    assert set(used[80:]) == {2}


def test_a_steady_one_is_told_in_vain() -> None:
    assert set(steps(ThreadCount(4, steady=True), crowded(1), 10 * SHORTEST)) == {4}


@given(
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(1, 64), st.floats(0, 1), st.floats(0, 100)), max_size=400),
)
def test_it_stays_within_its_bounds(most: int, told: list[tuple[int, float, float]]) -> None:
    count = ThreadCount(most)
    met("several to choose from", most > 1 and told)
    for rows, seconds, lost in told:
        count.tell(rows, seconds, lost)
        assert 1 <= count.now <= most


def test_what_is_much() -> None:
    """Spinning isn't counted, so a quiet machine's threads are told to have waited for nothing."""
    assert 0 < MUCH < 0.5
