"""An engine core that was asked to leave: new work is refused, what was accepted is finished."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.protocol.from_frontend import Submit
from penstock.protocol.to_frontend import Accepted, Outputs, Rejected
from tests.engine import scores
from tests.engine.engine_process import Engine, write_prepared
from tests.engine.harness import Harness


def test_a_draining_core_refuses_what_is_new_and_serves_what_is_not() -> None:
    system = Harness()
    front = system.connect()
    system.start_worker()
    running = system.submit(front, [1, 2, 3], max_tokens=6, ignore_eos=True)
    system.run_step()
    assert front.status is not None
    assert not front.status.draining
    system.core.drain(system.now)
    system.settle()
    assert front.status.draining, "front ends are told at once"
    new = system.submit(front, [4, 5])
    resumed = system.submit(front, [4, 5], emitted={0: []}, resumed=True, ignore_eos=True)
    assert new.rejected is not None
    assert new.rejected.code == "unavailable"
    assert new.rejected.retry_after_ms > 0
    assert system.core.has_open_requests
    system.run()
    for request in (running, resumed):
        assert request.sequences[0].terminal is not None
        assert request.sequences[0].terminal.finish == "length"
    assert not system.core.has_open_requests


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    running = Engine(write_prepared(tmp_path))
    yield running
    running.close()


def start_endless(engine: Engine) -> Submit:
    """A request of one token that stays open: its worker keeps the first plan to itself."""
    process = engine.start()
    assert process.stderr is not None
    engine.until(engine.ready)
    helper = Harness()
    submit = helper.submit(helper.connect(), [1, 2, 3], max_tokens=4, ignore_eos=True).submit
    submit = msgspec.structs.replace(submit, request=7)
    engine.held = True
    assert engine.front.client.send(submit)
    engine.until(lambda: engine.front.take(Accepted))
    return submit


def test_a_draining_process_finishes_and_leaves(engine: Engine) -> None:
    submit = start_endless(engine)
    assert engine.process is not None
    engine.process.send_signal(signal.SIGTERM)
    engine.until(engine.draining)
    engine.front.client.send(msgspec.structs.replace(submit, request=8))
    refused = engine.until(lambda: engine.front.take(Rejected))
    assert (refused.request, refused.code) == (8, "unavailable")
    assert engine.process.poll() is None, "it waits for the open request"
    engine.held = False
    tokens: list[int] = []
    while len(tokens) < 4:
        for output in engine.until(lambda: engine.front.take(Outputs)).outputs:
            tokens += output.tokens
    assert tokens == scores.undisturbed(submit, 0, 64)[0]
    engine.process.communicate(timeout=60)
    assert engine.process.returncode == 0


def test_a_drain_ends_when_its_time_is_over(engine: Engine) -> None:
    engine.shutdown_timeout = 2.0
    start_endless(engine)
    assert engine.process is not None
    began = time.monotonic()
    engine.process.send_signal(signal.SIGTERM)
    engine.until(engine.draining)
    engine.until(lambda: engine.front.ended)
    engine.process.communicate(timeout=60)  # Its request is open for ever.
    assert time.monotonic() - began > 1.9
    assert engine.process.returncode == 0


def test_a_second_signal_ends_a_drain_at_once(engine: Engine) -> None:
    engine.shutdown_timeout = 600.0
    start_endless(engine)
    assert engine.process is not None
    engine.process.send_signal(signal.SIGTERM)
    engine.until(engine.draining)
    assert engine.process.poll() is None
    engine.process.send_signal(signal.SIGINT)
    engine.until(lambda: engine.front.ended)
    engine.process.communicate(timeout=60)
    assert engine.process.returncode == 0
