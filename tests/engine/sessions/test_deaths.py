"""What a death of the worker does: a pause, suspects that run alone, and who fails."""

from __future__ import annotations

import pytest

from tests.engine.harness import Harness
from tests.engine.sessions.test_sessions import end_of
from tests.engine.sessions.test_worker_sessions import with_step_in_flight


def test_a_death_of_the_worker_is_a_pause() -> None:
    h, _, request = with_step_in_flight()
    for _ in range(3):
        h.run_step()
    before = list(request.sequences[0].tokens)
    assert before
    h.kill_worker()
    assert request.sequences[0].tokens == before
    h.start_worker(700)
    h.run()
    assert end_of(request).finish == "length"
    assert request.sequences[0].tokens[: len(before)] == before


def test_suspects_run_alone_until_they_are_past_the_point_of_the_death() -> None:
    h = Harness(max_num_seqs=4, max_num_batched_tokens=64)
    front = h.connect()
    h.start_worker()
    requests = [h.submit(front, [i + 1] * 3, max_tokens=20, ignore_eos=True) for i in range(3)]
    for _ in range(5):
        h.run_step()
    h.kill_worker()
    late = h.submit(front, [9], max_tokens=3, ignore_eos=True)
    h.start_worker()
    assert h.worker is not None
    while not late.sequences[0].tokens:
        h.run_step()
    # One suspect's recomputation, then a step of those that are cleared; the newcomer comes last.
    assert [len(plan.work) for plan in h.worker.log[:5]] == [1, 1, 1, 2, 1]
    h.run()
    assert all(end_of(request).finish == "length" for request in [*requests, late])


def test_a_suspect_is_alone_up_to_the_chunk_of_the_death() -> None:
    """Its first chunks were computed before, and clear it of nothing."""
    h = Harness(max_num_seqs=4, max_num_batched_tokens=8, max_steps_in_flight=1)
    front = h.connect()
    h.start_worker()
    h.submit(front, [9], max_tokens=60, ignore_eos=True)
    h.run_step()
    h.submit(front, [1, 2, 3, 4] * 12, max_tokens=2, ignore_eos=True)
    scheduling = h.core.state.scheduling
    while len(scheduling.running) < 2:
        h.run_step()
    (long,) = (each for each in scheduling.running.values() if each.num_tokens > 40)
    while long.progress.computed < 14:
        h.run_step()
    h.kill_worker()
    h.start_worker()
    assert h.worker is not None
    until = long.suspect_until
    assert until > 20
    before = -1
    while long.progress.computed < until:
        assert h.run_step() is not None
        if long.slot is not None and long.progress.computed > max(before, 0):
            assert len(h.worker.log[-1].work) == 1, "nobody is in a step with it"
        before = long.progress.computed
    assert not long.suspect_until
    h.run_step()
    h.run_step()
    assert len(h.worker.log[-1].work) == 2


def test_steps_of_a_suspect_go_one_at_a_time() -> None:
    """So that the next death points to one step."""
    h = Harness(max_num_seqs=4, max_num_batched_tokens=8, max_steps_in_flight=2)
    front = h.connect()
    h.start_worker()
    h.submit(front, [1, 2, 3, 4] * 8, max_tokens=20, ignore_eos=True)
    h.submit(front, [9], max_tokens=40, ignore_eos=True)
    assert len(h.plans) == 2
    for _ in range(5):
        h.run_step()
    h.kill_worker()
    h.start_worker()
    scheduling, sizes = h.core.state.scheduling, set()
    suspects = [
        s for s in [*scheduling.running.values(), *scheduling.queue.sequences()] if s.deaths
    ]
    assert suspects
    while any(each.suspect_until for each in suspects):
        sizes.add(len(h.plans))
        assert h.run_step() is not None
    assert sizes == {1}
    h.run_step()
    assert len(h.plans) == 2


def test_a_resumed_request_that_saw_a_death_begins_alone() -> None:
    h = Harness(max_num_batched_tokens=64)
    front = h.connect()
    h.submit(front, [1] * 3, deaths=1, max_tokens=4, ignore_eos=True)
    h.submit(front, [2] * 3, max_tokens=4, ignore_eos=True)
    h.start_worker()
    assert h.worker is not None
    h.run()
    assert [len(plan.work) for plan in h.worker.log[:3]] == [1, 2, 2]


def test_a_request_that_kills_twice_fails_and_the_others_go_on() -> None:
    """The third prompt kills every worker that computes it."""
    h = Harness(max_num_seqs=4, max_num_batched_tokens=64)
    front = h.connect()
    h.start_worker()
    requests = [h.submit(front, [i + 1] * 3, max_tokens=8, ignore_eos=True) for i in range(4)]
    kills = 0
    for _ in range(200):
        if h.plan is None:
            break
        running = h.core.state.scheduling.running
        if any(running[work.slot].request.prompt_token_ids[0] == 3 for work in h.plan.work):
            kills += 1
            h.kill_worker()
            h.start_worker()
        else:
            h.run_step()
    assert kills == 2
    assert [end_of(request).finish for request in requests] == [
        "length",
        "length",
        "error",
        "length",
    ]
    assert "died 2 times" in (end_of(requests[2]).error or "")


def test_workers_that_die_for_other_reasons_fail_nobody() -> None:
    """A worker killed again and again, while each request gets a step alone in between."""
    h = Harness(max_num_seqs=4, max_num_batched_tokens=64)
    front = h.connect()
    requests = [h.submit(front, [i + 1] * 3, max_tokens=30, ignore_eos=True) for i in range(3)]
    for _ in range(6):
        h.start_worker()
        for _ in range(8):
            h.run_step()
        h.kill_worker()
    h.start_worker()
    h.run()
    assert [end_of(request).finish for request in requests] == ["length"] * 3


@pytest.mark.parametrize(("deaths", "finish"), [(1, "length"), (2, "error"), (9, "error")])
def test_deaths_that_a_submit_brings_count(deaths: int, finish: str) -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    request = h.submit(front, [1], n=2, deaths=deaths, max_tokens=5, ignore_eos=True)
    innocent = h.submit(front, [2], max_tokens=5, ignore_eos=True)
    h.run()
    assert [end_of(request, index).finish for index in (0, 1)] == [finish] * 2
    assert end_of(innocent).finish == "length"


def test_a_suspect_that_kills_once_more_fails() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    request = h.submit(front, [1], deaths=1, max_tokens=5, ignore_eos=True)
    h.kill_worker()
    h.start_worker()
    assert end_of(request).finish == "error"
