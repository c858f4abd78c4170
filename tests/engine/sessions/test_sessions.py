"""Front ends' sessions: hello, versions, status, workers that are stuck, and internal errors."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.protocol.from_frontend import Abort, Hello
from penstock.protocol.from_worker import (
    Progress,
    Result,
)
from penstock.protocol.to_frontend import SequenceOutput
from penstock.protocol.to_worker import Plan
from penstock_engine.sessions.fault_attribution import MAX_DEATHS
from tests.engine.harness import Harness
from tests.engine.scores import Front, RequestScore


def end_of(request: RequestScore, index: int = 0) -> SequenceOutput:
    terminal = request.sequences[index].terminal
    assert terminal is not None
    return terminal


def status_of(h: Harness, front: Front) -> Any:
    h.now += 1.0
    h.settle()
    return front.status


def test_welcome_carries_what_a_front_end_needs() -> None:
    h = Harness(max_model_len=64)
    front = h.connect()
    assert front.welcome is not None
    assert front.welcome.version == 2
    assert front.welcome.model == "tiny"
    assert front.welcome.limits.max_model_len == 64
    h.start_worker(3)
    later = h.connect().welcome
    assert later is not None
    assert later.limits.max_model_len == 12


def test_no_common_version_ends_the_session_with_both_lists() -> None:
    h = Harness()
    front = h.connect(versions=(7, 9))
    assert front.welcome is None
    assert front.ended is not None
    assert "[2]" in front.ended
    assert "[7, 9]" in front.ended


def test_a_session_begins_with_hello_and_has_only_one() -> None:
    h = Harness()
    front = h.connect()
    h.send(front, Hello([2], "again", 1))
    assert front.ended is not None
    assert "twice" in front.ended
    h.core.frontend_opened(b"x" * 16, Abort(1), h.now)
    assert [reason for _, reason in h.core.step(h.now).end_frontends] == [
        "the first message must be Hello"
    ]
    h.core.frontend_received(b"y" * 16, Abort(1), h.now)  # never opened: ignored
    assert h.core.step(h.now).end_frontends == []


def test_status_comes_every_beat_and_at_once_when_readiness_changes() -> None:
    h = Harness()
    front = h.connect()
    assert front.status is not None
    assert (front.status.ready, front.status.reason) == (False, "no worker is connected")
    first = front.status
    h.now += 0.1
    h.settle()
    assert front.status is first
    h.now = max(h.now, h.core.next_deadline())
    h.settle()
    assert front.status is not first
    h.start_worker(ready=False)
    assert front.status.reason == "the worker is loading the model"
    h.worker_ready(50)
    assert front.status.ready
    assert (front.status.blocks_total, front.status.blocks_free) == (50, 50)
    assert (front.status.workers, front.status.fingerprint) == (1, "f")
    h.kill_worker()
    assert not front.status.ready
    assert front.status.fingerprint == "f", "the next one computes the same"


def test_readiness_proves_progress() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    h.now += 100
    assert status_of(h, front).ready  # nothing to do, for however long
    h.submit(front, [1] * 40, max_tokens=9)
    h.now += 8
    assert status_of(h, front).ready
    h.worker_says(Progress(1, 5))
    h.now += 8
    assert status_of(h, front).ready
    h.worker_says(Progress(1, 5))  # the same count again is no progress
    h.now += 3
    status = status_of(h, front)
    assert not status.ready
    assert status.reason == "no step has made progress for 10 s"
    h.run_step()
    assert front.status is not None
    assert front.status.ready


def test_workers_that_are_stuck_are_replaced_and_the_request_goes_on() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    h.now += 1000  # Nothing to do.
    h.settle()
    asked = h.submit(front, [1] * 40, max_tokens=9, ignore_eos=True)
    h.run_step()
    h.now += 299
    h.settle()
    assert h.worker_session is not None
    h.worker_says(Progress(h.plans[0][0].step, 5))
    h.now += 299
    h.settle()
    assert h.worker_session is not None
    h.now += 2
    h.settle()
    assert h.worker_end == "no step has made progress for 300 s (--stuck-timeout)"
    h.start_worker()
    h.run()
    assert end_of(asked).finish == "length"


def test_a_step_that_has_just_begun_is_not_stuck() -> None:
    """However long nothing could be computed before it, or the engine core itself was away."""
    h = Harness()
    front = h.connect()
    h.start_worker()
    h.now += 1000
    asked = h.submit(front, [1] * 40, max_tokens=9, ignore_eos=True)
    h.settle()
    assert h.worker_session is not None
    h.run()
    assert end_of(asked).finish == "length"


def test_a_request_that_workers_hang_of_ends() -> None:
    h = Harness()
    front = h.connect()
    asked = h.submit(front, [1] * 40, max_tokens=9, ignore_eos=True)
    for _ in range(MAX_DEATHS):
        h.start_worker()
        assert h.plans
        h.now += 301
        h.settle()
        assert h.worker_session is None
    assert end_of(asked).finish == "error"


def test_an_internal_error_ends_one_session_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = Harness()
    h.allow_internal_errors = True
    front, other = h.connect(), h.connect()
    h.start_worker()
    kept = h.submit(other, [1], max_tokens=9, ignore_eos=True)

    def broken(*_: Any) -> None:
        raise KeyError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr("penstock_engine.handlers.submissions.Request", broken)
        h.submit(front, [1])
    assert front.ended is not None
    assert "internal error" in front.ended
    h.run()
    assert end_of(kept).finish == "length"


def test_an_internal_error_in_a_step_is_survived_and_repeated_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = Harness()
    h.allow_internal_errors = True
    front = h.connect()
    h.start_worker()
    request = h.submit(front, [1], n=2, max_tokens=9, ignore_eos=True)
    h.run_step()
    scheduler = h.core.state.scheduling
    whole = scheduler.apply

    def half(result: Result) -> Any:
        whole(result)
        raise KeyError("a bug after the tokens were appended")

    monkeypatch.setattr(scheduler, "apply", half)
    h.run_step()
    monkeypatch.setattr(scheduler, "apply", whole)
    assert h.worker is None
    h.start_worker()
    h.run()
    assert [len(s.tokens) for s in request.sequences.values()] == [9, 9]  # none twice, none lost

    def never() -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(h.core.scheduler, "plan", never)
    for _ in range(2):
        h.core.step(h.now)
    with pytest.raises(RuntimeError, match="3 internal errors"):
        h.core.step(h.now)


@pytest.mark.parametrize(
    "where",
    [
        "penstock_engine.handlers.submissions.Request",
        "penstock_engine.handlers.results.ResultHandler.take",
        "penstock_engine.scheduler.pipeline.Scheduler.plan",
    ],
)
def test_a_lack_of_memory_ends_the_process_and_accuses_nobody(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    h = Harness()
    h.allow_internal_errors = True
    front = h.connect()
    h.start_worker()
    h.submit(front, [1], max_tokens=9, ignore_eos=True)
    h.run_step()

    def lacking(*_: Any, **__: Any) -> None:
        raise MemoryError

    def go_on() -> None:
        h.submit(front, [2])
        h.run_step()

    monkeypatch.setattr(where, lacking)
    with pytest.raises(MemoryError):
        go_on()
    running = h.core.state.scheduling.running.values()
    assert [sequence.deaths for sequence in running] == [0]


def test_a_block_that_was_lost_is_noticed_when_idle_and_found_again() -> None:
    h = Harness()
    h.allow_internal_errors = True
    front = h.connect()
    h.start_worker(20)
    request = h.submit(front, [1], max_tokens=3, ignore_eos=True)
    pool = h.core.state.scheduling.pool
    assert pool is not None
    lost = pool.take(1)
    effects = h.core.step(h.now)  # something runs: not the time to look
    assert effects.end_workers == []
    while h.plan is not None and h.worker is not None:
        plan, _ = h.plans.popleft()
        h.core.worker_received(h.worker_session or b"", h.worker.execute(plan), h.now)
        effects = h.core.step(h.now)
        for _, message, _ in effects.to_workers:
            if isinstance(message, Plan):
                h.plans.append((message, []))
    assert ["internal error" in reason for _, reason in effects.end_workers] == [True]
    assert lost == [1]
    assert request.accepted
    h.start_worker(20)
    h.submit(front, [1])
    h.run()
