"""The core's state as another thread gets it, and what the health checks make of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.config.settings import RecordSettings
from penstock_engine.metrics import observed as observed_module
from penstock_engine.metrics.figures import snapshot as figures_of
from penstock_engine.metrics.observed import FRESH, LIVE_AGE, READY_AGE, EngineHealth, Observed
from penstock_engine.record.recorder import recording
from penstock_engine.record.replay_files import replay_all
from tests.engine.harness import Harness

WAIT = 0.125
"""Seconds between two turns of an idle loop, as EngineHealth is told."""
PATIENT = 60.0
"""Seconds to wait where the loop does turn: in another thread, which may not run for a while."""


@contextmanager
def turning(observed: Observed) -> Iterator[list[float]]:
    """A loop around the core, in another thread. Gives the times of its turns."""
    over = threading.Event()
    turns: list[float] = []

    def run() -> None:
        while not over.wait(0.01):
            now = time.monotonic()
            observed.step(now)
            turns.append(now)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield turns
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
        return figures_of(*arguments)

    monkeypatch.setattr(observed_module, "snapshot", counted)
    monkeypatch.setattr(observed_module, "FRESH", 1000.0)
    observed = Observed(harness.core)
    with turning(observed) as turns:
        until = time.monotonic() + 60
        while len(turns) < 5 and time.monotonic() < until:
            time.sleep(0.01)
        assert made == []
        before = turns[-1]
        first = observed.snapshot(60)
        assert first is not None
        assert first.now > before, "it was made in a turn after the question"
        threads = [threading.Thread(target=observed.snapshot, args=(60,)) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 1, "who asks more often gets the same again"
        monkeypatch.setattr(observed_module, "FRESH", 0.0)
        second = observed.snapshot(60)
        assert second is not None
        assert second.now > first.now


def test_a_loop_that_stands_still_keeps_nobody_waiting_for_ever(harness: Harness) -> None:
    assert Observed(harness.core).snapshot(0.2) is None


def test_a_core_that_serves_is_ready(harness: Harness) -> None:
    observed = Observed(harness.core)
    health = EngineHealth(observed, PATIENT)
    with turning(observed):
        assert health.dead() is None
        assert health.unready() is None
    time.sleep(2 * FRESH)
    harness.core.drain(time.monotonic())
    with turning(observed):
        assert health.unready() == "the engine core is draining"
    harness.kill_worker()


def test_a_recording_of_an_observed_core_is_replayed(tmp_path: Path) -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    with recording(h.core, RecordSettings(record_dir=str(tmp_path))) as recorded:
        h.core = observed = Observed(recorded)  # type: ignore[assignment]
        h.settle()
        asking = threading.Thread(target=lambda: states.append(observed.snapshot(60)))
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
    assert "all decisions are equal" in shown[0]


def test_without_a_worker_it_is_not() -> None:
    observed = Observed(Harness().core)
    health = EngineHealth(observed, PATIENT)
    with turning(observed):
        assert health.unready() == "no worker is connected"
        assert health.dead() is None


def test_a_loop_that_is_stuck_is_not_ready_and_in_the_end_not_alive(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed = Observed(harness.core)
    with turning(observed):
        assert EngineHealth(observed, PATIENT).unready() is None
    monkeypatch.setattr(observed_module, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    patience: list[float] = []
    snapshot = observed.snapshot

    def noted(seconds: float) -> Any:
        patience.append(seconds)
        return snapshot(seconds)

    observed.snapshot = noted  # type: ignore[method-assign]
    health = EngineHealth(observed, WAIT)
    for age, ready, alive in (
        (0.1, True, True),
        (READY_AGE + WAIT + 0.5, False, True),
        (LIVE_AGE + WAIT + 0.5, False, False),
    ):
        patience.clear()
        observed.turned = 1000.0 - age
        assert (health.unready() is None) == ready
        assert (health.dead() is None) == alive
        assert sum(patience) < READY_AGE, "nobody waits longer for an answer"
        if not ready:
            assert "has not turned for" in str(health.unready())
