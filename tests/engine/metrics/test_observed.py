"""The core's state as another thread gets it, and what the health checks make of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.config import RecordSettings
from penstock_engine.commands import replay_all
from penstock_engine.metrics import observed as observed_module
from penstock_engine.metrics.health import LIVE_AGE, READY_AGE, Health
from penstock_engine.metrics.observed import FRESH, Observed
from penstock_engine.metrics.state import state_of
from penstock_engine.record.recorder import recording
from tests.engine.harness import Harness

WAIT = 0.125


def soon(health: Health, reason: str | None) -> None:
    """The core is unready for this reason, as soon as its loop has had its turn."""
    deadline = time.monotonic() + 60
    while health.unready() != reason:
        assert time.monotonic() < deadline, health.unready()


@contextmanager
def turning(observed: Observed) -> Iterator[None]:
    """A loop around the core, in another thread."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.01):
            observed.step(time.monotonic())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def harness() -> Harness:
    h = Harness()
    h.now = time.monotonic()
    h.start_worker()
    return h


def test_the_state_is_of_now_and_at_rest_none_is_made(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def counted(*arguments: Any) -> Any:
        made.append(arguments)
        return state_of(*arguments)

    monkeypatch.setattr(observed_module, "state_of", counted)
    observed = Observed(harness.core)
    with turning(observed):
        time.sleep(0.1)
        assert made == []
        begun = time.monotonic()
        first = observed.state(60)
        assert first is not None
        assert first.now > begun - 1
        threads = [threading.Thread(target=observed.state, args=(60,)) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) <= 2, "who asks more often gets the same again"
        time.sleep(2 * FRESH)
        second = observed.state(60)
        assert second is not None
        assert second.now > first.now


def test_a_loop_that_stands_still_keeps_nobody_waiting_for_ever(harness: Harness) -> None:
    observed = Observed(harness.core)
    assert observed.state(0.2) is None


def test_a_core_that_serves_is_ready(harness: Harness) -> None:
    observed = Observed(harness.core)
    health = Health(observed, WAIT)
    with turning(observed):
        assert health.dead() is None
        soon(health, None)
        time.sleep(2 * FRESH)
        harness.core.drain(time.monotonic())
        soon(health, "the engine core is draining")
    harness.kill_worker()


def test_a_recording_of_an_observed_core_is_replayed(tmp_path: Path) -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    with recording(h.core, RecordSettings(record_dir=str(tmp_path))) as recorded:
        h.core = observed = Observed(recorded)  # type: ignore[assignment]
        h.settle()
        asking = threading.Thread(target=lambda: states.append(observed.state(60)))
        states: list[Any] = []
        asking.start()
        for _ in range(3):
            h.submit(front, [5, 6, 7], max_tokens=5, ignore_eos=True)
        h.run()
        while asking.is_alive():
            h.settle()
    assert states[0] is not None
    shown: list[str] = []
    assert replay_all([str(tmp_path)], shown.append), shown
    assert "all decisions alike" in shown[0]


def test_without_a_worker_it_is_not() -> None:
    observed = Observed(Harness().core)
    health = Health(observed, WAIT)
    with turning(observed):
        soon(health, "no worker is connected")
        assert health.dead() is None


def test_a_loop_that_is_stuck_is_not_ready_and_in_the_end_not_alive(harness: Harness) -> None:
    observed = Observed(harness.core)
    health = Health(observed, WAIT)
    with turning(observed):
        soon(health, None)
    for age, ready, alive in (
        (0.1, True, True),
        (READY_AGE + WAIT + 0.5, False, True),
        (LIVE_AGE + WAIT + 0.5, False, False),
    ):
        observed.turned = time.monotonic() - age
        assert (health.unready() is None) == ready
        assert (health.dead() is None) == alive
        if not ready:
            assert "has not turned for" in str(health.unready())
