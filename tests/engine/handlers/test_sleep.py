"""A core whose model sleeps: its workers give their memory back, nothing is lost, and it goes on
where it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.protocol.from_frontend import PutToSleep, WakeUp
from penstock_engine.notes import SleepNote
from tests.engine.handlers.test_pause import finish
from tests.engine.harness import Harness
from tests.engine.walked_harness import Choices
from tests.engine.walks import recorded, replayed, walked_beside


def sleeping(h: Harness) -> tuple[int, bool]:
    """The level and whether it sleeps, as front ends are told."""
    status = h.fronts[0].status
    return (0, False) if status is None else (status.sleeping, status.asleep)


def fall_asleep(h: Harness) -> None:
    """The worker comes back once its session has ended, hears that it is to sleep, and does."""
    assert h.worker_session is None
    h.start_worker(life="w")
    assert h.setup is None
    assert h.asleep


@pytest.mark.parametrize("in_flight", [1, 2])
def test_what_is_open_goes_on_where_it_was(in_flight: int) -> None:
    h = Harness(max_num_seqs=2, max_steps_in_flight=in_flight)
    front = h.connect()
    h.start_worker(life="w")
    open_ones = [h.submit(front, [n] * 6, max_tokens=9, ignore_eos=True) for n in (1, 2, 3)]
    for _ in range(4):
        h.run_step()
    under_way = len(h.plans)
    h.send(front, PutToSleep(1))
    if under_way:
        assert h.worker_session is not None
    while h.plans:
        h.run_step()
    h.settle()
    assert sleeping(h) == (1, False)
    h.now += 1.0
    h.settle()
    assert front.status is not None
    assert front.status.missing == (0,)
    fall_asleep(h)
    assert sleeping(h) == (1, True)
    assert front.status.missing == ()
    late = h.submit(front, [4] * 4, max_tokens=3, ignore_eos=True)
    assert late.accepted
    for _ in range(100):
        h.now += 1.0
        h.settle()
    assert not h.plans
    assert front.status is not None
    assert front.status.ready
    h.send(front, WakeUp())
    h.settle()
    assert sleeping(h) == (0, False)
    assert not front.status.ready
    h.start_worker(life="w")
    assert front.status.ready
    h.run()
    for each in (*open_ones, late):  # The harness compares the tokens.
        assert finish(each) == "length"
    assert h.core.state.counts.worker_deaths == 0


def test_abort_ends_what_is_open_and_a_death_changes_nothing() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker(life="w")
    request = h.submit(front, [7] * 5, max_tokens=9)
    h.run_step()
    request.aborted = True
    h.send(front, PutToSleep(2, abort=True))
    while h.plans:
        h.run_step()
    h.settle()
    assert finish(request) == "abort"
    fall_asleep(h)
    h.kill_worker()
    h.settle()
    assert sleeping(h) == (2, False)
    fall_asleep(h)
    h.send(front, PutToSleep(1))  # It doesn't become lighter.
    assert sleeping(h) == (2, True)


def test_each_tag_has_to_be_named() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker(life="w")
    h.send(front, PutToSleep(1))
    h.settle()
    fall_asleep(h)
    for tags, level in ((["kv_cache"], 1), (["kv_cache"], 1), (["weights"], 0)):
        h.send(front, WakeUp(tags))
        h.settle()
        assert sleeping(h)[0] == level


def test_who_wakes_it_while_workers_fall_asleep_gets_a_model() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker(life="w")
    h.send(front, PutToSleep(2))
    h.settle()
    h.start_worker(ready=False, life="w")
    h.send(front, WakeUp())
    h.settle()
    assert h.worker_session is None  # Its answer would be about a sleep that nobody wants.
    h.start_worker(life="w")
    request = h.submit(front, [7] * 5, max_tokens=4, ignore_eos=True)
    h.run()
    assert finish(request) == "length"


@pytest.mark.parametrize("seed", [1, 2])
def test_any_history_with_sleeps_keeps_the_books(seed: int) -> None:
    sleeps = 0

    def rest(h: Harness, choose: Choices) -> None:
        nonlocal sleeps
        if h.fronts and choose.whole(0, 24) == 0:
            wake = choose.whole(0, 1) == 0
            h.send(h.fronts[0], WakeUp() if wake else PutToSleep(2))
            sleeps += h.core.state.sleep.level > 0
        if h.core.state.sleep.level and h.fronts and choose.whole(0, 9) == 0:
            h.send(h.fronts[0], WakeUp())

    walker = walked_beside(seed, rest, 1500)
    h = walker.h
    assert sleeps > 5
    if not h.fronts:
        h.connect()
    h.send(h.fronts[0], WakeUp())
    walker.end()


def test_a_sleep_is_recorded(tmp_path: Path) -> None:
    h = Harness(max_num_seqs=2)
    with recorded(h, tmp_path):
        front = h.connect()
        h.start_worker(life="w")
        h.submit(front, [3] * 5, max_tokens=6, ignore_eos=True)
        h.run_step()
        h.send(front, PutToSleep(1))
        while h.plans:
            h.run_step()
        h.settle()
        fall_asleep(h)
        h.send(front, WakeUp())
        h.settle()
        h.start_worker(life="w")
        h.run()
    assert replayed(tmp_path) > 0


def test_a_note_outlives_the_process(tmp_path: Path) -> None:
    path = str(tmp_path / "asleep")
    note = SleepNote(path)
    assert note.level == 0
    note.keep(2)
    assert SleepNote(path).level == 2
    note.keep(0)
    assert SleepNote(path).level == 0
    assert not list(tmp_path.iterdir())
    (tmp_path / "asleep").write_text("7")
    assert SleepNote(path).level == 0
