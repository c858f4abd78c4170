"""What steps make is freed by its reference counts, so that the collector may look seldom."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadtest.engine_core import (
    FRONTEND,
    WORKER,
    answer,
    decoding_core,
    open_worker,
    plans_of,
    submit,
)
from penstock.process.memory import COLLECT_AFTER
from penstock.protocol.from_frontend import Abort
from penstock.protocol.to_frontend import Rejected
from penstock_engine.core import EngineCore
from tests.engine.engine_process import PROGRAM, Engine, write_prepared

pytestmark = pytest.mark.timeout(120)

RUNNING, BLOCKS, STEPS = 8, 1000, 40
LONG, SHORT = 2 * STEPS, STEPS // 2
"""Outputs that go on when the steps are over, and that don't."""


def nothing(core: EngineCore) -> None:
    pass


def abort(core: EngineCore) -> None:
    for number in range(RUNNING):
        core.frontend_received(FRONTEND, Abort(number), 0.0)


def refuse(core: EngineCore) -> None:
    """Its prompt is longer than max_model_len."""
    submit(core, RUNNING, [5] * 9000, LONG)
    said = [message for _, message, _ in core.step(0.0).to_frontends]
    assert any(isinstance(message, Rejected) for message in said)


def leave(core: EngineCore) -> None:
    core.frontend_ended(FRONTEND, "it is gone", 0.0)


def lose_worker(core: EngineCore) -> None:
    """Another comes, which computes anew what runs."""
    core.worker_ended(WORKER, "it is gone", 0.0)
    core.step(0.0)
    open_worker(core, BLOCKS)


@pytest.mark.parametrize(
    ("happens", "output", "goes_on"),
    [
        (nothing, LONG, True),
        (nothing, SHORT, False),
        (abort, LONG, False),
        (refuse, LONG, True),
        (leave, LONG, False),
        (lose_worker, LONG, True),
    ],
    ids=["steps", "finish", "abort", "refusal", "ended-session", "lost-worker"],
)
def test_no_cycles_are_left(
    happens: Callable[[EngineCore], None], output: int, goes_on: bool
) -> None:
    core = decoding_core(BLOCKS, RUNNING, output)
    waiting = deque(plans_of(core.step(0.0)))
    gc.collect()
    gc.disable()
    try:
        for step in range(STEPS):
            if step == SHORT // 2:
                happens(core)
                if happens is lose_worker:
                    waiting.clear()
            if waiting:
                core.worker_received(WORKER, answer(waiting.popleft()), 0.0)
            waiting += plans_of(core.step(0.0))
        assert gc.collect() == 0
    finally:
        gc.enable()
    assert core.has_open_requests == goes_on
    assert bool(waiting) == goes_on


SAYING_PROGRAM = (
    """
import gc, sys
from pathlib import Path
from penstock_engine.process import Loop
run = Loop.run
def run_and_say(self):
    Path(sys.argv[2], "collector").write_text(f"{gc.get_threshold()[0]} {gc.get_freeze_count()}.")
    run(self)
Loop.run = run_and_say
"""
    + PROGRAM
)
"""Writes after how many objects the collector looks, and how many it leaves alone."""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    running = Engine(write_prepared(tmp_path), program=SAYING_PROGRAM)
    yield running
    running.close()


def test_an_engine_cores_collector_looks_seldom(engine: Engine) -> None:
    engine.start()
    said = engine.folder / "collector"
    engine.until(lambda: said.exists() and said.read_text().endswith("."))
    threshold, kept = said.read_text().rstrip(".").split()
    assert int(threshold) == COLLECT_AFTER
    assert int(kept) > 1000
