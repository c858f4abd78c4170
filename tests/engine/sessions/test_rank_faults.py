"""Ranks that fail, one after the other, and what the engine core makes of it."""

from __future__ import annotations

import pytest

from penstock.protocol.from_worker import Fault
from penstock_engine.sessions.rank_faults import FAULT_PATIENCE
from tests.engine.rank_workers import RankHarness
from tests.engine.sessions.rank_sessions import ask, finishes, started

LOST = Fault("another rank is gone", final=False, rank_lost=True)
FULL = Fault("out of memory", final=False, out_of_memory=True)


def deaths(h: RankHarness) -> list[int]:
    return [sequence.deaths for sequence in h.core.state.scheduling.queue.sequences()]


def test_all_ranks_are_heard_before_the_group_is_over() -> None:
    h = started(2, 2)
    ask(h)
    for rank in (3, 0, 2):
        h.rank_says(rank, LOST)
        assert not h.ends
    h.rank_says(1, Fault("a cable fell out", final=False))
    assert len(h.ends) == 4
    assert deaths(h) == [1]


@pytest.mark.parametrize("first", [0, 1])
def test_whichever_fault_comes_first_memory_is_why(first: int) -> None:
    h = started(1, 2, max_num_batched_tokens=200, block_size=4, max_model_len=200)
    (request,) = ask(h)
    faults = [(0, FULL), (1, LOST)]
    for rank, fault in (faults[first], faults[1 - first]):
        if rank in h.ranks:
            h.rank_says(rank, fault)
    assert len(h.ends) == 2
    assert h.core.state.scheduling.budget == 100
    assert deaths(h) == [0]
    assert h.core.state.workers.health(h.now) == (False, "the worker failed: out of memory")
    h.start_worker()
    h.run()
    assert finishes(request) == ["length"]


def test_two_ranks_without_memory_halve_the_budget_once() -> None:
    h = started(2, max_num_batched_tokens=200)
    ask(h)
    session = h.ranks[1].session
    h.rank_says(0, FULL)
    h.core.worker_received(session, FULL, h.now)
    h.settle()
    assert h.core.state.scheduling.budget == 100


def test_a_rank_that_says_nothing_is_not_waited_for_long() -> None:
    h = started(2)
    (request,) = ask(h)
    h.rank_says(0, LOST)
    assert h.core.next_deadline() <= h.now + FAULT_PATIENCE
    h.now += FAULT_PATIENCE / 2
    ask(h)
    assert not h.ends
    assert len(h.plans) == 1, "nothing more is sent"
    h.now += FAULT_PATIENCE / 2
    h.settle()
    assert len(h.ends) == 2
    assert deaths(h) == [0, 0], "nobody has died yet, as far as is known"
    h.start_worker(ready=False)
    assert sorted(deaths(h)) == [0, 1], "who came meanwhile is not accused"
    h.worker_ready()
    h.run()
    assert finishes(request) == ["length"]


def test_a_rank_that_has_said_why_may_go() -> None:
    h = started(1, 3, max_num_batched_tokens=200)
    ask(h)
    h.rank_says(2, LOST)
    h.kill_rank(2)
    assert not h.ends
    h.rank_says(0, FULL)
    assert h.core.state.scheduling.budget == 100
    assert deaths(h) == [0]


def test_a_rank_that_goes_without_a_word_ends_the_wait() -> None:
    h = started(2)
    ask(h)
    h.rank_says(0, LOST)
    h.kill_rank(1)
    assert not h.ranks
    h.start_worker(ready=False)
    assert deaths(h) == [1]


def test_nobody_is_waited_for_where_no_step_is_in_flight() -> None:
    h = started(2)
    h.rank_says(0, LOST)
    assert not h.ranks


def test_what_others_say_of_it_does_not_hide_the_reason() -> None:
    h = started(2)
    (request,) = ask(h)
    h.rank_says(1, Fault("a cable fell out", final=False))
    h.rank_says(0, LOST)
    assert not h.ranks
    assert h.core.state.workers.health(h.now) == (False, "the worker failed: a cable fell out")
    h.start_worker()
    h.rank_says(1, Fault("it has burnt", final=True))
    assert finishes(request) == ["error"]


def test_a_reason_comes_before_that_another_is_gone() -> None:
    h = started(2)
    ask(h)
    h.rank_says(0, LOST)
    h.rank_says(1, Fault("a cable fell out", final=False))
    assert h.core.state.workers.health(h.now) == (False, "the worker failed: a cable fell out")


def test_out_of_memory_halves_the_steps_and_accuses_nobody() -> None:
    h = started(2, max_num_batched_tokens=200, block_size=4, max_model_len=200)
    (request,) = (h.submit(h.fronts[0], [3] * 150, max_tokens=3, ignore_eos=True),)
    for budget, planned in ((100, 150), (64, 100), (64, 64)):
        assert h.plan is not None
        assert h.plan.work[0].count == planned
        h.rank_says(1, Fault("out of memory", final=False, out_of_memory=True))
        assert len(h.ends) == 2
        h.ends.clear()
        assert h.core.state.scheduling.budget == budget
        sequence = h.core.state.scheduling.queue.sequences()[0]
        assert sequence.deaths == (planned == 64), "accused only where steps can't get smaller"
        h.start_worker()
    h.run()
    assert finishes(request) == ["length"]


def test_a_block_is_the_least_that_a_step_has() -> None:
    h = started(1, max_num_batched_tokens=200, block_size=150, max_model_len=200)
    ask(h)
    h.rank_says(0, Fault("out of memory", final=False, out_of_memory=True))
    assert h.core.state.scheduling.budget == 150


def test_out_of_memory_while_loading_is_a_fault_as_any() -> None:
    h = RankHarness(2, max_num_batched_tokens=200)
    h.start_worker(ready=False)
    h.rank_says(0, Fault("out of memory", final=True, out_of_memory=True))
    assert h.core.state.scheduling.budget == 200
    assert h.core.state.workers.final
