"""A model over several ranks: how a group forms, what makes a step, and what ends all of it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import InvalidRequest
from penstock.protocol.from_worker import Fault, Progress, Result, SlotResult, WorkerHello
from penstock_engine.live.view import LiveView
from penstock_engine.sessions.ranks import FORMINGS_A_SECOND
from penstock_planning.simulate.simulation import Simulation, SimulationOptions
from tests.engine.rank_workers import RankHarness
from tests.engine.sessions.rank_sessions import ask, finishes, ready, started
from tests.engine.small_facts import facts

# ---- forming


def test_setup_is_sent_when_all_are_there_and_steps_when_all_are_ready() -> None:
    h = RankHarness(2, 2)
    front = h.connect()
    for rank in (2, 0, 3):
        h.hello(rank)
        assert not h.formed
    assert front.status is not None
    assert h.core.state.workers.health(h.now) == (False, "ranks 1 (of 4) are not connected")
    h.hello(1)
    assert h.formed
    (request,) = ask(h)
    for rank in (3, 1, 0):
        h.rank_ready(rank, 50)
        assert h.core.state.workers.health(h.now)[1] == "the workers are loading the model"
        assert not h.plans
    h.rank_ready(2, 50)
    assert front.status.ready
    assert front.status.workers == 4
    assert all(rank.plans for rank in h.ranks.values())
    h.run()
    assert finishes(request) == ["length"]


def test_one_rank_is_alone_and_needs_no_rendezvous() -> None:
    h = started(1, 1)
    assert h.setup is not None
    assert h.setup.group is None


@pytest.mark.parametrize(
    ("tensor", "hello", "reason"),
    [
        (2, WorkerHello([2], 2, 1, "host:1"), "ranks 0 to 1; there is no rank 2"),
        (2, WorkerHello([2], -1, 1, "host:1"), "there is no rank -1"),
        (1, WorkerHello([2], 1, 1), "one worker, rank 0; there is no rank 1"),
        (2, WorkerHello([2], 1, 1), "must give an address for the others"),
        (2, WorkerHello([7], 1, 1, "host:1"), "no protocol version in common"),
        (2, Progress(1, 1), "the first message must be WorkerHello"),
    ],
)
def test_who_has_no_place_is_told_why(tensor: int, hello: Any, reason: str) -> None:
    h = RankHarness(tensor)
    h.core.worker_opened(b"x" * 16, hello, h.now)
    ((session, told),) = h.core.step(h.now).end_workers
    assert session == b"x" * 16
    assert reason in told
    h.start_worker()
    assert h.worker is not None


def test_a_rank_that_waits_is_replaced_alone() -> None:
    h = RankHarness(3)
    h.hello(0)
    h.hello(1)
    first = h.ranks[0].session
    h.hello(0)
    assert h.ranks[0].session != first
    assert 1 in h.ranks
    h.hello(2)
    assert h.formed  # and the group's rendezvous is the second one's: the harness looks


def test_a_rank_that_waits_may_leave_and_come_back() -> None:
    h = RankHarness(2)
    h.hello(1)
    h.kill_rank(1)
    h.hello(0)
    assert not h.formed
    h.hello(1)
    assert h.formed
    assert not h.ends
    assert not h.core.state.counts.worker_deaths


@pytest.mark.parametrize(
    ("field", "value"), [("num_kv_blocks", 51), ("num_host_blocks", 3), ("fingerprint", "g")]
)
def test_ranks_that_are_ready_for_different_things_are_dropped(field: str, value: Any) -> None:
    h = RankHarness(2)
    h.start_worker(ready=False)
    h.rank_says(1, ready())
    h.rank_says(0, ready(**{field: value}))
    assert sorted(rank for rank, _ in h.ends) == [0, 1]
    assert all(f"ranks disagree: {field}" in reason for _, reason in h.ends)
    h.start_worker()
    assert h.core.state.workers.ready is not None


def test_what_comes_out_of_turn_ends_the_group_or_who_waits_for_it() -> None:
    h = RankHarness(2)
    h.hello(0)
    h.rank_says(0, ready())
    assert h.ends == [(0, "Ready was not expected in this state")]
    h.start_worker(ready=False)
    h.rank_says(0, ready())
    h.rank_says(0, Result(1, []))
    assert [rank for rank, _ in h.ends[1:]] == [0, 1]


def test_numbers_rise_over_the_lives_of_an_engine() -> None:
    h = started()
    number = h.last_number
    h.kill_rank(0)
    h.start_worker()
    assert h.last_number > number
    created = h.facts.created
    assert created * FORMINGS_A_SECOND < number < (created + 1) * FORMINGS_A_SECOND


# ---- steps


def test_a_step_is_settled_when_the_last_rank_has_answered() -> None:
    h = started(2, 2, max_steps_in_flight=1)
    (request,) = ask(h)
    for rank in (2, 0, 3):
        h.rank_step(rank)
        assert not request.sequences[0].tokens
    h.rank_step(1)
    assert len(request.sequences[0].tokens) == 1


def test_a_rank_may_run_ahead_by_what_is_in_flight() -> None:
    h = started(2, max_steps_in_flight=3)
    (request,) = ask(h)
    assert len(h.plans) == 3
    for _ in range(3):
        assert h.rank_step(1) is not None
    assert h.rank_step(1) is None
    assert not request.sequences[0].tokens
    h.rank_step(0)
    assert len(request.sequences[0].tokens) == 1
    h.run()
    assert finishes(request) == ["length"]


@pytest.mark.parametrize(
    ("rank", "result", "reason"),
    [
        (1, Result(2, []), "rank 1 returned a result for step 2; 1 was to come"),
        (1, Result(1, [SlotResult(0, 5)]), "rank 1 returned results for slots; only rank 0 may"),
        (0, Result(1, []), "has 0 slots"),
    ],
)
def test_results_that_do_not_fit_end_the_group(rank: int, result: Result, reason: str) -> None:
    h = started()
    (request,) = ask(h)
    h.rank_step(1 - rank, sampled=0)
    h.rank_says(rank, result)
    assert len(h.ends) == 2
    assert all(reason in told for _, told in h.ends)
    h.start_worker()
    h.run()
    assert finishes(request) == ["length"]


def test_a_result_that_nobody_asked_for_ends_the_group() -> None:
    h = started(max_steps_in_flight=1)
    ask(h)
    h.rank_step(1)
    h.rank_says(1, Result(2, []))
    assert "2 was not expected" in h.ends[0][1]


def test_ranks_that_sampled_differently_are_dropped_and_the_request_goes_on() -> None:
    h = started(2, 2)
    (request,) = ask(h)
    h.run_step()
    told = list(request.sequences[0].tokens)
    for rank in (0, 1, 2):
        h.rank_step(rank, **({"sampled": 9} if rank == 2 else {}))
    h.rank_step(3, sampled=10)
    assert len(h.ends) == 4
    assert "ranks disagree on what step 2 sampled: [9, 10]" in h.ends[0][1]
    assert request.sequences[0].tokens == told
    h.start_worker()
    h.run()
    assert finishes(request) == ["length"]


def test_first_stages_have_nothing_to_compare() -> None:
    h = started(1, 2)
    (request,) = ask(h)
    h.rank_step(0, sampled=77)
    h.plans.popleft()
    h.rank_step(1, sampled=78)
    assert len(request.sequences[0].tokens) == 1


def test_a_step_took_what_its_slowest_rank_took() -> None:
    h = started(3)
    ask(h)
    for rank, seconds in enumerate((0.25, 0.5)):
        h.rank_step(rank, compute_seconds=seconds)
    h.plans.popleft()
    h.rank_step(2, compute_seconds=0.125)
    assert h.core.state.workers.compute_seconds == 0.5
    assert h.core.state.scheduling.num_steps == 1


def test_progress_of_any_rank_is_progress() -> None:
    h = started()
    ask(h, tokens=40)
    h.rank_step(0)
    for layers in (5, 6):
        h.now += 8
        h.rank_says(1, Progress(1, layers))
        assert h.core.state.workers.health(h.now)[0]
    h.now += 11
    h.rank_says(1, Progress(1, 6))
    assert not h.core.state.workers.health(h.now)[0]


# ---- the end of a group


@pytest.mark.parametrize("rank", range(4))
def test_the_loss_of_any_rank_ends_all_and_requests_resume(rank: int) -> None:
    h = started(2, 2)
    requests = ask(h, 3)
    for _ in range(4):
        h.run_step()
    h.kill_rank(rank)
    assert sorted(other for other, _ in h.ends) == [one for one in range(4) if one != rank]
    assert all(f"rank {rank} was lost" in reason for _, reason in h.ends)
    assert not h.ranks
    assert h.core.state.counts.worker_deaths == 1
    h.start_worker()
    h.run()
    assert all(finishes(request) == ["length"] for request in requests)


def test_what_a_dropped_rank_still_says_is_not_heard() -> None:
    h = started()
    (request,) = ask(h)
    session = h.ranks[1].session
    h.kill_rank(0)
    h.core.worker_received(session, Result(1, []), h.now)
    h.core.worker_ended(session, "late", h.now)
    h.start_worker()
    h.core.worker_received(session, Fault("late", final=True), h.now)
    h.run()
    assert finishes(request) == ["length"]
    assert h.core.state.counts.worker_deaths == 1


def test_a_second_session_of_a_rank_ends_the_group() -> None:
    h = started()
    (request,) = ask(h)
    h.hello(1)
    assert sorted(h.ranks) == [1]
    assert all("dialled in again" in reason for _, reason in h.ends)
    h.start_worker()
    h.run()
    assert finishes(request) == ["length"]


def test_who_claims_a_rank_that_another_holds_is_refused() -> None:
    """Else two workers with the same rank would end each other's groups for ever."""
    h = started()
    (request,) = ask(h)
    for life in ("a stranger", "another"):
        h.core.worker_opened(b"s" * 16, WorkerHello([2], 1, 9, "host:1", life), h.now)
        refused = h.core.step(h.now).end_workers
        assert [(s, "is taken by another worker" in why) for s, why in refused] == [
            (b"s" * 16, True)
        ]
        h.core.worker_ended(b"s" * 16, "refused", h.now)
    h.run()
    assert finishes(request) == ["length"]
    assert h.core.state.counts.worker_deaths == 0


# ---- what is shown


def test_the_live_view_counts_steps_and_losses_once() -> None:
    h = started(2, 2)
    view = LiveView(h.core, h.now)
    view._leases[b"x"] = h.now + 1000
    step = h.core.step

    def watched(now: float) -> Any:
        effects = step(now)
        view.delivering(effects, now)
        return effects

    h.core.step = watched  # type: ignore[method-assign]
    ask(h, 2, tokens=3)
    while h.plans:
        for rank in (3, 1, 0, 2):
            told = h.rank_step(rank)
            if told is not None:
                view.worker_said(told, h.now)
    shown = view.snapshot(h.now)
    assert [row.number for row in shown.steps.rows] == list(range(1, shown.steps.total + 1))
    h.kill_rank(3)
    assert view.snapshot(h.now).worker.lost == 1


def test_a_simulation_takes_ranks_of_one_stage_for_one_worker() -> None:
    config = facts(tensor=4, num_kv_blocks=100).config
    assert Simulation(config, SimulationOptions()).replicas[0].core.state.workers.ready is not None
    with pytest.raises(InvalidRequest, match="one stage"):
        Simulation(facts(pipeline=2, num_kv_blocks=100).config, SimulationOptions())
