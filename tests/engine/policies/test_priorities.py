"""The policy `priority`: order, ageing, the right to preempt, and what a key may ask for."""

from __future__ import annotations

import pytest

from penstock.errors import StartupError
from penstock.protocol.common import Grant
from penstock_engine.policies.fair import FairShare
from penstock_engine.policies.fair_accounts import Accounts
from penstock_engine.policies.order import PriorityWithAgeing
from penstock_engine.policies.tenants import Tenants
from tests.engine.harness import Harness
from tests.engine.scores import RequestScore
from tests.engine.simulated import Asked, Simulation

LEVEL = PriorityWithAgeing.ARRIVALS_PER_LEVEL


def done(*requests: RequestScore) -> bool:
    return all(s.terminal is not None for r in requests for s in r.sequences.values())


def started(h: Harness) -> list[int]:
    """First tokens of the sequences that got a slot, in order."""
    assert h.worker is not None
    return [new.tokens[0] for plan in h.worker.log for new in plan.admitted]


def test_the_lower_value_starts_first_and_equals_by_arrival() -> None:
    h = Harness(scheduling_policy="priority", max_num_seqs=1)
    front = h.connect()
    for token, priority in enumerate([0, 5, -3, 0, -3, 5], start=1):
        h.submit(front, [token], priority=priority, max_tokens=2, ignore_eos=True)
    h.start_worker()
    h.run()
    assert started(h) == [3, 5, 1, 4, 2, 6]


@pytest.mark.parametrize("short_of", ["slots", "blocks"])
@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_better_one_takes_the_place_of_a_worse_one_that_runs(
    short_of: str, in_flight: int
) -> None:
    slots, blocks = (2, 100) if short_of == "slots" else (4, 12)
    h = Harness(scheduling_policy="priority", max_num_seqs=slots, max_steps_in_flight=in_flight)
    front = h.connect()
    h.start_worker(blocks)
    worse = [h.submit(front, [i] * 16, max_tokens=8, ignore_eos=True) for i in (1, 2)]
    for _ in range(4):
        h.run_step()
    assert len(h.core.state.scheduling.running) == 2
    better = h.submit(front, [3] * 14, priority=-1, max_tokens=8, ignore_eos=True)
    steps = 0
    while not better.sequences[0].tokens:
        assert h.run_step() is not None
        steps += 1
    assert steps <= in_flight + 1  # what was in flight, and its own
    assert h.core.state.scheduling.num_preemptions == 1
    assert started(h) == [1, 2, 3]
    h.run()
    assert done(better, *worse)  # the harness compares the tokens
    assert started(h) == [1, 2, 3, 2]


def test_nobody_is_preempted_where_that_would_not_be_enough() -> None:
    h = Harness(scheduling_policy="priority", max_num_seqs=4)
    front = h.connect()
    h.start_worker(12)
    equal = h.submit(front, [1] * 24, priority=-1, max_tokens=8, ignore_eos=True)
    worse = h.submit(front, [2] * 8, max_tokens=8, ignore_eos=True)
    for _ in range(4):
        h.run_step()
    large = h.submit(front, [3] * 32, priority=-1, max_tokens=8, ignore_eos=True)
    h.run_step()
    assert h.core.state.scheduling.num_preemptions == 0
    h.run()
    assert done(equal, worse, large)


def test_a_prompt_in_chunks_gives_way_to_a_better_one() -> None:
    h = Harness(scheduling_policy="priority", max_num_batched_tokens=8)
    front = h.connect()
    h.start_worker()
    long = h.submit(front, [1] * 60, max_tokens=2, ignore_eos=True)
    h.run_step()
    better = h.submit(front, [2] * 14, priority=-1, max_tokens=2, ignore_eos=True)
    h.run_step()  # it was in flight
    h.run_step()
    h.run_step()
    assert better.sequences[0].tokens
    assert not long.sequences[0].tokens
    h.run()
    assert done(long, better)


def test_who_waits_is_overtaken_by_a_bounded_number() -> None:
    """An endless stream of better requests; the worse one's turn comes when it has aged."""
    overtaken = 0

    def again(asked: Asked) -> None:
        nonlocal overtaken
        if asked.tenant == "better":
            overtaken += 1
            sim.ask(sim.now, "better", 8, 4, priority=-1)

    sim = Simulation(settings={"scheduling_policy": "priority", "max_num_seqs": 2}, on_end=again)
    for _ in range(4):
        sim.ask(0.0, "better", 8, 4, priority=-1)
    sim.ask(0.1, "worse", 8, 4, priority=1)
    sim.run(20)
    worse = next(asked for asked in sim.requests.values() if asked.tenant == "worse")
    assert worse.ended is not None
    assert overtaken > 3 * LEVEL  # it did go on
    by_then = sum(
        asked.ended is not None and asked.at > 0.1 and asked.ended < worse.ended
        for asked in sim.requests.values()
    )
    assert LEVEL < by_then <= 2 * LEVEL + 4


def test_a_priority_means_nothing_to_fcfs_and_is_refused() -> None:
    h = Harness()
    rejected = h.submit(h.connect(), [1], priority=-1).rejected
    assert rejected is not None
    assert rejected.code == "invalid"
    assert "fcfs" in rejected.message


@pytest.mark.parametrize("priority", [-101, 101])
def test_a_priority_has_bounds(priority: int) -> None:
    h = Harness(scheduling_policy="priority")
    rejected = h.submit(h.connect(), [1], priority=priority).rejected
    assert rejected is not None
    assert rejected.code == "invalid"


def test_a_key_has_a_highest_priority() -> None:
    h = Harness(scheduling_policy="priority", tenants="a:highest_priority=-5;*:highest_priority=0")
    front = h.connect()
    assert h.submit(front, [1], tenant="a", priority=-5).accepted
    assert h.submit(front, [1], tenant="b", priority=3).accepted
    for tenant, priority in (("a", -6), ("b", -1), ("", -1)):
        rejected = h.submit(front, [1], tenant=tenant, priority=priority).rejected
        assert rejected is not None
        assert rejected.code == "invalid"
        assert "API key" in rejected.message


def test_the_setting_for_tenants() -> None:
    tenants = Tenants("x:weight=3,max_requests=2;anonymous:weight=2;*:highest_priority=-1;")
    assert tenants.of("x") == Grant(weight=3, max_requests=2)
    assert tenants.of("") == Grant(weight=2)
    assert tenants.of("y") == Grant(highest_priority=-1)
    assert Tenants("").of("y") == Grant()


@pytest.mark.parametrize(
    "text", ["x:weight=0", "x:weight=1,weight=2", "x:height=1", "x;x", "x:max_requests=-1", ":"]
)
def test_a_wrong_setting_for_tenants_is_refused(text: str) -> None:
    with pytest.raises(StartupError, match="tenants"):
        Tenants(text)


def test_a_request_brings_what_its_tenant_may_have() -> None:
    h = Harness(scheduling_policy="priority", tenants="listed:max_requests=2")
    front = h.connect()
    grant = Grant(weight=2, max_requests=1, highest_priority=0)
    assert h.submit(front, [1], tenant="a", grant=grant).accepted
    rejected = h.submit(front, [1], tenant="a", grant=grant).rejected
    assert rejected is not None
    assert rejected.code == "limited"
    rejected = h.submit(front, [1], tenant="b", grant=grant, priority=-1).rejected
    assert rejected is not None
    assert rejected.code == "invalid"
    # What the engine core itself was told comes first.
    assert h.submit(front, [1], tenant="listed", grant=grant).accepted
    assert h.submit(front, [1], tenant="listed", grant=grant).accepted
    # The front end is not trusted to have checked it.
    for wrong in (Grant(weight=0), Grant(weight=1001), Grant(max_requests=0), Grant(1, 1, -101)):
        rejected = h.submit(front, [1], tenant="c", grant=wrong).rejected
        assert rejected is not None
        assert rejected.code == "invalid"


def test_a_weight_that_a_request_brings_counts_in_the_fair_share() -> None:
    tenants, order = Tenants("listed:weight=5"), FairShare(Tenants(), 64).order
    accounts = Accounts(tenants, order, 64)
    for name, grant, weight in (
        ("told", Grant(weight=4), 4),
        ("told", Grant(weight=2), 2),
        ("listed", Grant(weight=4), 5),
        ("unknown", None, 1),
    ):
        accounts.joined(name, grant)
        assert accounts[name].weight == weight
