"""Calls of worker extensions: between steps, one at a time, and nobody's stream is hurt."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.config.settings import TransportSettings
from penstock.protocol.common import MAX_CALL_BYTES
from penstock.protocol.from_frontend import CallWorkers, SetPaused
from penstock.protocol.from_worker import CallDone, CallFailed
from penstock.protocol.to_frontend import Called
from penstock_engine.waiting.worker_calls import MOST_WAITING
from tests.engine.harness import Harness
from tests.engine.scores import Front, RequestScore
from tests.engine.small_facts import facts
from tests.engine.walked_harness import Choices
from tests.engine.walks import recorded, replayed, walked_beside


def asks(h: Harness, front: Front, number: int = 1, seconds: float = 60.0) -> None:
    h.send(front, CallWorkers(number, "memory", b"\x92\x90\x80", seconds))


def answers(h: Harness, result: bytes = b"\x01") -> None:
    """The worker is done with the call that it has."""
    h.worker_says(CallDone(h.calls.popleft().call, result))


def run_plans(h: Harness) -> None:
    while h.plans:
        h.run_step()


def ended(score: RequestScore) -> bool:
    """The harness has compared its tokens."""
    terminal = score.sequences[0].terminal
    return terminal is not None and terminal.finish == "length"


@pytest.mark.parametrize("in_flight", [1, 2])
def test_it_runs_while_no_step_does(in_flight: int) -> None:
    h = Harness(max_num_seqs=2, max_steps_in_flight=in_flight)
    front = h.connect()
    h.start_worker()
    open_ones = [h.submit(front, [n] * 6, max_tokens=9, ignore_eos=True) for n in (1, 2, 3)]
    for _ in range(4):
        h.run_step()
    asks(h, front)
    run_plans(h)
    (call,) = h.calls
    assert (call.method, call.seconds) == ("memory", 60.0)
    for _ in range(50):  # Longer than a step may stand still.
        h.now += 1.0
        h.settle()
        assert not h.plans
    assert front.status is not None
    assert front.status.ready
    answers(h, b"\x07")
    assert front.called == [Called(1, 0, 1, b"\x07")]
    h.run()
    assert all(map(ended, open_ones))


def test_steps_have_their_turn_between_two_calls() -> None:
    h = Harness(max_steps_in_flight=2)
    front = h.connect()
    h.start_worker()
    open_one = h.submit(front, [5] * 6, max_tokens=9, ignore_eos=True)
    for number in (1, 2):
        asks(h, front, number)
    run_plans(h)
    answers(h)
    assert h.plans
    assert not h.calls
    run_plans(h)
    answers(h)
    assert [each.call for each in front.called] == [1, 2]
    h.run()
    assert ended(open_one)


def test_calls_that_no_step_lies_between_follow_one_another() -> None:
    """Nothing to compute, or nothing that may be."""
    h = Harness()
    front = h.connect()
    h.start_worker()
    for paused in (False, True):
        h.send(front, SetPaused(paused))
        h.submit(front, [5] * 6, max_tokens=3, ignore_eos=True) if paused else None
        for number in (1, 2, 3):
            asks(h, front, number)
        for _ in range(3):
            h.settle()
            assert h.core.next_deadline() > h.now
            answers(h)
    assert [each.call for each in front.called] == 2 * [1, 2, 3]
    h.send(front, SetPaused(False))
    h.run()


def test_a_method_that_fails_is_told_of() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    asks(h, front)
    h.worker_says(CallFailed(h.calls.popleft().call, "failed", "memory: ValueError: no"))
    assert front.called == [Called(1, 0, 1, b"", "failed", "memory: ValueError: no")]


def test_a_worker_that_ends_in_a_call_takes_only_that_along() -> None:
    h = Harness(max_num_seqs=2)
    front = h.connect()
    h.start_worker()
    open_one = h.submit(front, [5] * 6, max_tokens=9, ignore_eos=True)
    h.run_step()
    asks(h, front, 1)
    asks(h, front, 2)
    run_plans(h)
    assert h.calls
    h.kill_worker()
    (told,) = front.called
    assert (told.call, told.code) == (1, "unavailable")
    assert "killed" in told.error
    h.start_worker()
    run_plans(h)
    answers(h)
    assert (front.called[-1].call, front.called[-1].code) == (2, "")
    h.run()
    assert ended(open_one)
    assert open_one.sequences[0].deaths == 0


def test_one_that_can_not_begin_in_time() -> None:
    h = Harness()
    front = h.connect()
    asks(h, front, seconds=5.0)
    h.settle()
    assert h.core.next_deadline() <= h.now + 5.0
    h.now += 5.0
    h.settle()
    assert front.called == [
        Called(1, 0, 1, b"", "timed_out", "it could not begin within 5 s"),
    ]
    h.start_worker()
    h.settle()
    assert not h.calls


def test_calls_to_workers_are_bounded_in_number_size_and_time() -> None:
    h = Harness()
    front, other = h.connect(), h.connect()
    for number in range(MOST_WAITING + 1):
        asks(h, front, number)
    (told,) = front.called
    assert (told.call, told.code) == (MOST_WAITING, "unavailable")
    for wrong in (
        CallWorkers(1, "m", bytes(MAX_CALL_BYTES + 1), 1.0),
        CallWorkers(1, "m", b"", 0.0),
        CallWorkers(1, "m", b"", float("nan")),
        CallWorkers(1, "m", b"", 1e9),
        CallWorkers(1, "m" * 201, b"", 1.0),
    ):
        h.send(other, wrong)
        assert other.ended == "a call to the workers exceeds its limits"
        other = h.connect()


def test_what_a_call_carries_fits_a_message() -> None:
    least = TransportSettings(max_message_bytes=2**25)
    known = facts()
    config = msgspec.structs.replace(known.config, transport=least)
    h = Harness(msgspec.structs.replace(known, config=config))
    front = h.connect()
    h.start_worker()
    assert front.welcome is not None
    assert front.welcome.call_bytes == 2**24
    asks(h, front, 1)
    h.settle()
    (asked,) = h.calls
    assert asked.result_bytes == 2**24
    h.send(front, CallWorkers(2, "m", bytes(2**24 + 1), 1.0))
    assert front.ended == "a call to the workers exceeds its limits"


def test_a_front_end_that_goes_takes_its_calls_along() -> None:
    h = Harness()
    front, other = h.connect(), h.connect()
    h.start_worker()
    asks(h, front, 1)
    asks(h, front, 2)
    asks(h, other, 1)
    h.settle()
    h.disconnect(front)
    h.settle()
    answers(h)
    h.settle()
    answers(h, b"\x03")
    assert other.called == [Called(1, 0, 1, b"\x03")]
    h.settle()
    assert not h.calls


def test_an_answer_that_nobody_asked_for_ends_the_session() -> None:
    h = Harness()
    h.connect()
    h.start_worker()
    h.worker_says(CallDone(1, b""))
    assert h.worker_end == "CallDone was not expected in this state"


@pytest.mark.parametrize("seed", range(4))
def test_any_history_with_calls_keeps_the_books(seed: int) -> None:
    calls = 0

    def call(h: Harness, choose: Choices) -> None:
        nonlocal calls
        if h.fronts and choose.whole(0, 24) == 0:
            asks(h, h.fronts[0], choose.whole(1, 100), choose.whole(1, 20))
        if h.calls and choose.whole(0, 2) == 0:
            calls += 1
            answers(h)

    walker = walked_beside(seed, call, 1500)
    h = walker.h
    assert calls > 5
    if h.worker is None:
        h.start_worker()
    for _ in range(100):  # They wait for a worker, for steps that are in flight, for each other.
        if h.calls:
            answers(h)
        else:
            h.run_step()
        h.settle()
    walker.end()


def test_calls_are_recorded(tmp_path: Path) -> None:
    h = Harness(max_num_seqs=2)
    with recorded(h, tmp_path):
        front = h.connect()
        h.start_worker()
        h.submit(front, [3] * 5, max_tokens=6, ignore_eos=True)
        h.run_step()
        asks(h, front)
        run_plans(h)
        answers(h)
        h.run()
    assert replayed(tmp_path) > 0
