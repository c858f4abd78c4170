"""Deadlines and concurrency per tenant: what is refused, what ends, and when."""

from __future__ import annotations

import pytest

from penstock.protocol.from_worker import Result
from penstock_engine.policies.forecast import StepCostForecast, first_token_after
from tests.engine.harness import Harness
from tests.engine.scores import RequestScore
from tests.engine.simulated import Simulation


def finish_of(request: RequestScore, index: int = 0) -> str | None:
    end = request.sequences[index].terminal
    return None if end is None else end.finish


def test_what_waits_past_its_deadline_never_reaches_the_worker() -> None:
    h = Harness(max_num_seqs=1)
    front = h.connect()
    h.start_worker()
    long = h.submit(front, [1], max_tokens=30, ignore_eos=True)
    late = h.submit(front, [2], time_left_ms=500, n=2)
    assert h.core.next_deadline() <= h.now + 0.5
    h.now += 0.499
    h.settle()
    assert finish_of(late) is None
    h.now += 0.001
    h.settle()
    assert (finish_of(late, 0), finish_of(late, 1)) == ("timeout", "timeout")
    h.run()
    assert finish_of(long) == "length"
    assert h.worker is not None
    assert {new.tokens[0] for plan in h.worker.log for new in plan.admitted} == {1}


def test_time_that_is_over_already_ends_at_once_even_when_resumed() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    new = h.submit(front, [1], time_left_ms=0)
    resumed = h.submit(front, [1], resumed=True, time_left_ms=0)
    assert (finish_of(new), finish_of(resumed)) == ("timeout", "timeout")
    assert h.worker is not None
    assert h.plan is None


@pytest.mark.parametrize("in_flight", [1, 2])
def test_what_runs_past_its_deadline_ends_and_frees_its_blocks(in_flight: int) -> None:
    h = Harness(max_steps_in_flight=in_flight)
    front = h.connect()
    h.start_worker(20)
    request = h.submit(front, [1] * 10, max_tokens=40, ignore_eos=True, time_left_ms=1000)
    for _ in range(5):
        h.run_step()
    assert len(request.sequences[0].tokens) >= 4
    h.now += 1
    h.settle()
    assert finish_of(request) == "timeout"
    h.run()
    pool = h.core.state.scheduling.pool
    assert pool is not None
    assert pool.num_free == 20


def test_one_that_ends_before_its_deadline_is_not_ended_again() -> None:
    h = Harness()
    front = h.connect()
    h.start_worker()
    request = h.submit(front, [1], max_tokens=3, ignore_eos=True, time_left_ms=1000)
    h.run()
    assert finish_of(request) == "length"
    h.now += 2
    h.settle()  # the harness would see a second terminal output
    assert h.core.next_deadline() > h.now


@pytest.mark.parametrize("left", [-1, 86_400_001])
def test_time_left_has_bounds(left: int) -> None:
    rejected = (h := Harness()).submit(h.connect(), [1], time_left_ms=left).rejected
    assert rejected is not None
    assert rejected.code == "invalid"


def test_the_cost_of_a_step_is_found_from_steps() -> None:
    cost = StepCostForecast()
    for _ in range(10):
        for tokens in (1, 4, 64, 500):
            cost.observe(tokens, 0.01 + 0.0002 * tokens)
    fitted = cost.fit()
    assert fitted is not None
    assert fitted == pytest.approx((0.01, 0.0002), rel=1e-6)
    assert first_token_after(cost, 1000, 500) == pytest.approx(2 * 0.01 + 1000 * 0.0002)


def test_steps_that_are_all_alike_say_nothing_about_longer_ones() -> None:
    """A server that only decodes must not refuse prompts for the price of its decodes."""
    cost = StepCostForecast()
    assert first_token_after(cost, 100, 100) == 0.0
    for _ in range(20):
        cost.observe(4, 0.02)
    assert first_token_after(cost, 2000, 2000) == pytest.approx(0.02)


def loaded() -> Simulation:
    """100 requests of 1,000 tokens, two at a time, 0.1 s each; at 5 s half of them are done."""
    sim = Simulation(settings={"max_num_seqs": 2, "max_num_batched_tokens": 1000})
    for _ in range(100):
        sim.ask(0.0, "", 995, 3)
    sim.run(5)
    return sim


def test_work_that_would_miss_its_deadline_is_refused_with_an_honest_wait() -> None:
    sim = loaded()
    sim.ask(5.0, "", 10, 3, time_left_ms=1000)
    sim.run(5.5)
    refused = list(sim.requests.values())[-1]
    assert refused.rejected is not None
    assert refused.rejected.code == "overloaded"
    assert "deadline" in refused.rejected.message
    # Asked again when it was told to, and with the same time, it is in time.
    again = 5.0 + refused.rejected.retry_after_ms / 1000
    sim.ask(again, "", 10, 3, time_left_ms=2000)
    sim.run(60)
    second = list(sim.requests.values())[-1]
    assert second.rejected is None
    assert second.finish == "length"
    last = max(asked.first_token or 0.0 for asked in list(sim.requests.values())[:100])
    assert 0.5 * (last - 1) <= again <= 1.5 * last


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_what_nobody_waits_for_is_estimated_behind_its_like(policy: str) -> None:
    """A line of a batch among other lines; what somebody waits for stands before all of them."""
    settings = {"max_num_seqs": 2, "max_num_batched_tokens": 1000, "scheduling_policy": policy}
    sim = Simulation(settings=settings)
    for _ in range(100):
        sim.ask(0.0, "", 995, 3, background=True)
    sim.run(5)
    for background in (True, False):
        sim.ask(5.0, "", 10, 3, time_left_ms=1000, background=background)
    sim.run(5.5)
    behind, before = list(sim.requests.values())[-2:]
    assert behind.rejected is not None
    assert behind.rejected.code == "overloaded"
    assert before.rejected is None


def test_work_that_would_be_in_time_is_taken() -> None:
    sim = loaded()
    sim.ask(5.0, "", 10, 3, time_left_ms=20_000)
    sim.run(60)
    request = list(sim.requests.values())[-1]
    assert request.rejected is None
    assert request.finish == "length"


def test_resumed_work_is_not_refused_for_its_deadline() -> None:
    sim = loaded()
    sim.ask(5.0, "", 10, 3, time_left_ms=1000, resumed=True)
    sim.run(60)
    request = list(sim.requests.values())[-1]
    assert request.rejected is None
    assert request.finish == "timeout"


def test_a_tenant_may_have_so_many_requests_open() -> None:
    h = Harness(tenants="a:max_requests=2")
    front = h.connect()
    h.start_worker()
    first = h.submit(front, [1], tenant="a", max_tokens=4, ignore_eos=True, n=2)
    h.now += 4
    h.submit(front, [2], tenant="a", max_tokens=40, ignore_eos=True)
    third = h.submit(front, [3], tenant="a")
    assert third.rejected is not None
    assert third.rejected.code == "limited"
    assert third.rejected.retry_after_ms == 1000  # 2 s old on average, and two of them
    assert h.submit(front, [3], tenant="b", max_tokens=1).accepted
    assert h.submit(front, [3], tenant="a", resumed=True).accepted
    while finish_of(first) is None or finish_of(first, 1) is None:
        assert isinstance(h.run_step(), Result)
    h.run()
    assert h.submit(front, [3], tenant="a").accepted


def test_a_front_end_that_leaves_takes_its_tenants_requests_along() -> None:
    h = Harness(tenants="*:max_requests=1")
    front = h.connect()
    assert h.submit(front, [1], tenant="a").accepted
    other = h.connect()
    assert h.submit(other, [1], tenant="a").rejected is not None
    h.disconnect(front)
    assert h.submit(other, [1], tenant="a").accepted


def warm(queued: int) -> Simulation:
    """A prompt of 3,000 tokens, which takes 0.3 s, was computed; `queued` more bring it."""
    settings = {"max_num_seqs": 1, "max_num_batched_tokens": 1000, "prefix_caching": True}
    sim = Simulation(settings=settings)
    for at in range(10):
        sim.ask(0.1 * at, "", 20 + 40 * at, 3)
    sim.ask(2.0, "", 3000, 3)
    for _ in range(queued):
        sim.ask(3.0, "", 3000, 3)
    sim.run(3.0)
    return sim


def test_a_prompt_that_is_cached_is_not_refused_for_the_time_it_would_take_otherwise() -> None:
    sim = warm(queued=0)
    sim.ask(3.0, "", 3000, 1, time_left_ms=100)
    sim.ask(4.0, "", 3000, 1, time_left_ms=100, cache_salt="nobody has it")
    sim.run(5.0)
    cached, uncached = list(sim.requests.values())[-2:]
    assert (cached.rejected, cached.finish) == (None, "length")
    assert uncached.rejected is not None


def test_a_queue_of_cached_prompts_is_not_taken_for_a_long_one() -> None:
    sim = warm(queued=30)
    sim.ask(3.0, "", 3000, 1, time_left_ms=4000)
    sim.run(8.0)
    last = list(sim.requests.values())[-1]
    assert (last.rejected, last.finish) == (None, "length")
