"""Whom the loss of a worker, or of an engine core, counts against."""

from __future__ import annotations

from penstock.protocol.common import Grammar
from penstock.protocol.from_worker import Leaving
from penstock_engine.sessions.fault_attribution import FaultAttribution
from tests.engine.harness import Harness
from tests.engine.rank_workers import RankHarness
from tests.engine.sessions.rank_sessions import ask, finishes
from tests.engine.sessions.test_sessions import end_of

ENDLESS = {"ignore_eos": True, "max_tokens": 12}


def deaths(h: Harness) -> list[int]:
    scheduler = h.core.state.scheduling
    return [s.deaths for s in [*scheduler.running.values(), *scheduler.queue.sequences()]]


def test_a_worker_that_comes_back_alive_accuses_nobody() -> None:
    """Three pauses of a worker with the same request in a step: it is served in company."""
    h = Harness(max_num_batched_tokens=64)
    front = h.connect()
    h.start_worker(life="one")
    requests = [h.submit(front, [i + 1] * 3, **ENDLESS) for i in range(3)]
    for _ in range(3):
        h.kill_worker()
        h.start_worker(life="one")
        assert deaths(h) == [0, 0, 0]
        assert h.plan is not None
        assert len(h.plan.work) == 3, "nobody runs alone"
    h.run()
    assert [end_of(request).finish for request in requests] == ["length"] * 3


def test_a_worker_with_another_life_has_died() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker(life="one")
    request = h.submit(front, [1], **ENDLESS)
    h.kill_worker()
    h.start_worker(life="two")
    assert deaths(h) == [1]
    h.kill_worker()
    assert request.sequences[0].terminal is None, "it isn't known yet"
    h.start_worker(life="three")
    assert end_of(request).finish == "error"


def test_nothing_counts_against_what_has_ended() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    h.submit(front, [1], **ENDLESS)
    (sequence,) = h.core.state.scheduling.running.values()
    attribution = FaultAttribution()
    attribution.accuse({sequence: 3}, [])
    assert (sequence.deaths, sequence.suspect_until) == (1, 3)
    h.run()
    attribution.accuse({sequence: 9}, [])
    attribution.suspect({sequence: 9}, [], {0: "one"})
    assert attribution.arrived(0, "two") == []
    assert sequence.deaths <= 1


def test_a_pause_after_a_death_is_no_second_death() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker(life="one")
    request = h.submit(front, [1], **ENDLESS)
    h.kill_worker()
    h.start_worker(life="two")
    for _ in range(3):
        h.kill_worker()
        h.start_worker(life="two")
    assert deaths(h) == [1]
    h.run()
    assert end_of(request).finish == "length"


def test_a_worker_that_was_told_to_go_accuses_nobody() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker(life="one")
    request = h.submit(front, [1], **ENDLESS)
    h.accuses = False
    h.worker_says(Leaving())
    h.start_worker(life="two")
    assert deaths(h) == [0]
    h.run()
    assert end_of(request).finish == "length"


def test_one_rank_of_several_that_was_cut_off_accuses_nobody() -> None:
    h = RankHarness(2)
    h.lives = {0: "one", 1: "two"}
    h.connect()
    h.start_worker()
    (request,) = ask(h)
    for rank in (0, 1, 0):
        h.kill_rank(rank)
        h.start_worker(ready=False)
        assert deaths(h) == [0]
        h.worker_ready()
    h.lives[1] = "another"
    h.kill_rank(1)
    h.start_worker(ready=False)
    assert deaths(h) == [1]
    h.worker_ready()
    h.run()
    assert finishes(request) == ["length"]


def test_what_waits_is_not_suspected_when_an_engine_core_dies_and_front_ends_know_it() -> None:
    """What Outputs.entered and left say: the harness compares it with the slots at each step."""
    h = Harness(max_num_seqs=2)
    front = h.connect()
    waiting = [h.submit(front, [i + 1], **ENDLESS) for i in range(5)]
    assert front.in_step == set(), "no worker: nothing has entered a step"
    h.start_worker()
    assert front.in_step == {1, 2}
    h.kill_worker()
    assert front.in_step == set(), "all wait again"
    h.start_worker()
    h.run()
    assert [end_of(request).finish for request in waiting] == ["length"] * 5


def test_a_compiler_that_comes_back_alive_accuses_no_grammar() -> None:
    h = Harness()
    h.compile_at_once = False
    front = h.connect()
    h.start_worker(life="one")
    request = h.submit(front, [1], grammar=Grammar("regex", "5"), max_tokens=20)
    for _ in range(3):
        h.kill_worker()
        h.start_worker(life="one")
        assert h.worker is not None
        assert list(h.worker.asked) == [1]
    h.compiles(1)
    h.run()
    assert end_of(request).finish == "stop"
