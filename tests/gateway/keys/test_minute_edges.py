"""Rate limits where a minute ends, by a clock of the test's own."""

from __future__ import annotations

import asyncio
import math
from fractions import Fraction
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock_gateway.keys import windows
from penstock_gateway.keys.windows import MINUTE, LimitCheck, LimitState, ProcessWindows, Window
from tests.met import met

LIMIT = 10


class Clock:
    """time.monotonic, in quarters of a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.quarters = 0
        monkeypatch.setattr(windows, "time", SimpleNamespace(monotonic=self.now))

    def now(self) -> float:
        return self.quarters / 4


class Slow:
    """All that was ever let in, and the definition: what came in the running minute, and of what
    came in the one before the part that is less than a minute ago, were it spread evenly."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []

    def used(self, quarters: int) -> int:
        minute, passed = divmod(quarters, 4 * MINUTE)
        came = {minute: 0, minute - 1: 0}
        for at, amount in self.taken:
            if at // (4 * MINUTE) in came:
                came[at // (4 * MINUTE)] += amount
        left = Fraction(4 * MINUTE - passed, 4 * MINUTE)
        return math.floor(came[minute - 1] * left) + came[minute]


def take(windows: ProcessWindows, amount: int, name: str = "a") -> bool:
    return ask(windows, amount, name).allowed


def ask(windows: ProcessWindows, amount: int, name: str = "a") -> LimitState:
    return asyncio.run(windows.check([LimitCheck(name, LIMIT, amount)]))[0]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 6)), min_size=5, max_size=30))
def test_any_times_against_the_definition(
    monkeypatch: pytest.MonkeyPatch, steps: list[tuple[int, int]]
) -> None:
    clock, windows, slow = Clock(monkeypatch), ProcessWindows(), Slow()
    edges = refusals = 0
    for pause, amount in steps:
        before = clock.quarters // (4 * MINUTE)
        clock.quarters += pause
        used = slow.used(clock.quarters)
        fits = used + amount <= LIMIT
        edges += clock.quarters // (4 * MINUTE) == before + 1 and used > 0
        refusals += not fits
        assert take(windows, amount) == fits
        if fits:
            slow.taken.append((clock.quarters, amount))
        assert ask(windows, 0).window.used == slow.used(clock.quarters)
    met("the next minute begins, and what came before it still counts", edges)
    met("refused", refusals)


def test_what_was_used_just_before_the_edge_counts_just_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or twice the limit would pass within a second."""
    clock, windows = Clock(monkeypatch), ProcessWindows()
    clock.quarters = 4 * MINUTE - 1
    assert take(windows, LIMIT)
    clock.quarters = 4 * MINUTE
    assert not take(windows, 1)
    assert take(windows, LIMIT, "another key's")
    clock.quarters = 4 * MINUTE + 4 * 6
    assert take(windows, 1), "a tenth of the minute later"
    assert not take(windows, 1)
    clock.quarters = 8 * MINUTE + 4 * MINUTE
    assert take(windows, LIMIT), "two minutes later nothing of it counts"


@given(
    before=st.integers(0, 20),
    now=st.integers(0, 20),
    passed=st.integers(0, MINUTE - 1),
    used=st.integers(0, 12),
)
def test_a_time_to_wait_is_the_shortest_that_will_do(
    before: int, now: int, passed: int, used: int
) -> None:
    """Whole seconds are tried one by one."""

    def used_after(seconds: int) -> Fraction:
        at = passed + seconds
        counts, at = ((before, now), at) if at < MINUTE else ((now, 0), at - MINUTE)
        return counts[0] * Fraction(MINUTE - at, MINUTE) + counts[1] if at < MINUTE else Fraction(0)

    window = Window(before, float(MINUTE - passed), now, float(MINUTE - passed))
    waits = math.ceil(window.seconds_until(used) - 1e-9)
    met("it lies behind the edge", waits > MINUTE - passed)
    met("it lies before the edge", 0 < waits <= MINUTE - passed)
    assert used_after(waits) <= used
    assert waits == 0 or used_after(waits - 1) > used
