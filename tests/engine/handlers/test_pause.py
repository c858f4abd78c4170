"""A core that is paused: nothing is planned, nothing is lost, and it goes on where it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.protocol.from_frontend import SetPaused
from tests.engine.harness import Harness
from tests.engine.scores import RequestScore
from tests.engine.walked_harness import Choices
from tests.engine.walks import recorded, replayed, walked_beside


def finish(score: RequestScore) -> str | None:
    """How its one sequence finished."""
    terminal = score.sequences[0].terminal
    return None if terminal is None else terminal.finish


def paused(h: Harness) -> bool:
    """Whether the core is paused, as front ends are told."""
    front = h.fronts[0]
    return front.status is not None and front.status.paused


@pytest.mark.parametrize("in_flight", [1, 2])
def test_it_stands_still_once_the_steps_in_flight_have_ended(in_flight: int) -> None:
    h = Harness(max_num_seqs=2, max_steps_in_flight=in_flight)
    front = h.connect()
    h.start_worker()
    open_ones = [h.submit(front, [n] * 6, max_tokens=9, ignore_eos=True) for n in (1, 2, 3)]
    for _ in range(4):
        h.run_step()
    under_way = len(h.plans)
    h.send(front, SetPaused(True))
    h.settle()
    assert paused(h) == (not under_way)
    while h.plans:
        h.run_step()
    assert paused(h)
    late = h.submit(front, [4] * 4, max_tokens=3, ignore_eos=True)
    assert late.accepted
    before = [list(each.sequences[0].tokens) for each in open_ones]
    for _ in range(100):  # Much longer than a step may stand still.
        h.now += 1.0
        h.settle()
        assert not h.plans
    assert front.status is not None
    assert front.status.ready
    assert [list(each.sequences[0].tokens) for each in open_ones] == before
    h.send(front, SetPaused(False))
    h.settle()
    assert not paused(h)
    h.run()
    for each in (*open_ones, late):  # The harness compares the tokens.
        assert finish(each) == "length"


def test_abort_ends_what_all_front_ends_have_open() -> None:
    h = Harness(max_num_seqs=1)
    one, other = h.connect(), h.connect()
    h.start_worker()
    open_ones = [h.submit(front, [7] * 5, max_tokens=9) for front in (one, other)]
    for _ in range(3):
        h.run_step()
    for each in open_ones:
        each.aborted = True
    h.send(one, SetPaused(True, abort=True))
    h.settle()
    assert [finish(each) for each in open_ones] == ["abort", "abort"]
    while h.plans:
        h.run_step()
    assert paused(h)
    assert not h.core.has_open_requests


def test_deadlines_go_on() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    h.send(front, SetPaused(True))
    h.settle()
    late = h.submit(front, [1, 2], max_tokens=2, time_left_ms=500)
    h.now += 1.0
    h.settle()
    assert finish(late) == "timeout"


def test_a_worker_that_is_lost_meanwhile_changes_nothing() -> None:
    h = Harness(max_num_seqs=2)
    front = h.connect()
    h.start_worker()
    open_one = h.submit(front, [5] * 6, max_tokens=9, ignore_eos=True)
    for _ in range(3):
        h.run_step()
    h.send(front, SetPaused(True))
    while h.plans:
        h.run_step()
    h.kill_worker()
    h.start_worker()
    h.settle()
    assert not h.plans
    h.send(front, SetPaused(False))
    h.run()
    assert finish(open_one) == "length"


@pytest.mark.parametrize("seed", [1, 2])
def test_any_history_with_pauses_keeps_the_books(seed: int) -> None:
    pauses = 0

    def pause(h: Harness, choose: Choices) -> None:
        nonlocal pauses
        if h.fronts and choose.whole(0, 24) == 0:
            abort = choose.whole(0, 3) == 0
            for front in h.fronts if abort else ():
                for request in front.requests.values():
                    request.aborted = True
            h.send(h.fronts[0], SetPaused(choose.whole(0, 1) == 0, abort))
            pauses += h.core.state.stands_still

    walker = walked_beside(seed, pause, 1500)
    h = walker.h
    assert pauses > 2
    if not h.fronts:
        h.connect()
    h.send(h.fronts[0], SetPaused(False))
    walker.end()


def test_a_pause_is_recorded(tmp_path: Path) -> None:
    h = Harness(max_num_seqs=2)
    with recorded(h, tmp_path):
        front = h.connect()
        h.start_worker()
        for mode in (False, True):
            request = h.submit(front, [3] * 5, max_tokens=6, ignore_eos=True)
            request.aborted = mode
            h.run_step()
            h.send(front, SetPaused(True, abort=mode))
            while h.plans:
                h.run_step()
            h.send(front, SetPaused(False))
            h.run()
    assert replayed(tmp_path) > 0
