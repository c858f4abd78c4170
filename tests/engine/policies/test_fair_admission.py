"""The policy `fair` at the door and at the compiler: a flood leaves room for others."""

from __future__ import annotations

from penstock.protocol.common import Grammar
from tests.engine.harness import Harness
from tests.engine.scores import RequestScore
from tests.engine.sessions.test_sessions import end_of

ENDLESS = {"ignore_eos": True, "max_tokens": 4}


def flooded(**options: object) -> tuple[Harness, list[RequestScore]]:
    h = Harness(scheduling_policy="fair", max_waiting_requests=20, **options)
    front = h.connect()
    return h, [h.submit(front, [1] * 4, tenant="flood", **ENDLESS) for _ in range(60)]


def test_a_tenant_that_floods_is_refused_before_the_room_is_full() -> None:
    h, flood = flooded()
    accepted = sum(request.accepted for request in flood)
    assert accepted == 16, "four parts of five"
    refused = next(request for request in flood if request.rejected)
    assert refused.rejected is not None
    assert refused.rejected.code == "overloaded"
    assert "the rest is reserved for others" in refused.rejected.message
    light = [h.submit(h.fronts[0], [2] * 4, tenant="light", **ENDLESS) for _ in range(3)]
    assert all(request.accepted for request in light)
    h.start_worker()
    h.run()
    assert [end_of(request).finish for request in light] == ["length"] * 3


def test_weight_gives_more_of_the_room() -> None:
    h = Harness(scheduling_policy="fair", max_waiting_requests=20, tenants="flood:weight=4")
    front = h.connect()
    flood = [h.submit(front, [1] * 4, tenant="flood", **ENDLESS) for _ in range(60)]
    assert sum(request.accepted for request in flood) == 18


def test_tokens_are_shared_as_well() -> None:
    h = Harness(scheduling_policy="fair", max_waiting_tokens=200)
    front = h.connect()
    flood = [h.submit(front, [1] * 20, tenant="flood", **ENDLESS) for _ in range(20)]
    assert sum(request.accepted for request in flood) == 8
    assert h.submit(front, [2] * 20, tenant="light", **ENDLESS).accepted


def test_with_other_policies_the_room_is_for_who_comes_first() -> None:
    h = Harness(max_waiting_requests=20)
    front = h.connect()
    flood = [h.submit(front, [1] * 4, tenant="flood", **ENDLESS) for _ in range(60)]
    assert sum(request.accepted for request in flood) == 20


def grammar(number: int) -> Grammar:
    return Grammar("regex", str(number))


def asks(h: Harness, tenant: str, first: int, count: int) -> list[RequestScore]:
    front = h.fronts[0]
    return [
        h.submit(front, [3] * 4, tenant=tenant, grammar=grammar(n), max_tokens=300)
        for n in range(first, first + count)
    ]


def compiling(policy: str) -> Harness:
    h = Harness(scheduling_policy=policy, max_grammars=64, max_model_len=256)
    h.connect()
    h.compile_at_once = False
    h.start_worker()
    return h


def test_a_trivial_grammar_does_not_wait_behind_a_flood_of_slow_ones() -> None:
    h = compiling("fair")
    asks(h, "flood", 1, 30)
    assert h.worker is not None
    assert len(h.worker.asked) == 3, "one place is kept for others"
    (light,) = asks(h, "light", 100, 1)
    assert [g.text for g in h.worker.asked.values()][-1] == "100", "it is being compiled at once"
    h.compiles(next(n for n, g in h.worker.asked.items() if g.text == "100"))
    assert light.prepared


def test_the_compilers_time_is_shared_out() -> None:
    """Two who flood take turns, though one of them has grammars that take ten times as long."""
    h = compiling("fair")
    asks(h, "slow", 1, 30)
    asks(h, "quick", 100, 20)
    assert h.worker is not None
    ends: dict[int, float] = {}
    given = {"slow": 0.0, "quick": 0.0}
    for _ in range(24):
        for number, definition in h.worker.asked.items():
            ends.setdefault(number, h.now + (1.0 if int(definition.text) < 100 else 0.25))
        first = min(h.worker.asked, key=ends.__getitem__)
        is_slow = int(h.worker.asked[first].text) < 100
        given["slow" if is_slow else "quick"] += 1.0 if is_slow else 0.25
        h.now = ends[first]
        h.compiles(first)
    assert given["quick"] > given["slow"] / 2, given


def test_first_come_first_served_compiles_in_order() -> None:
    h = compiling("fcfs")
    asks(h, "flood", 1, 30)
    asks(h, "light", 100, 1)
    assert h.worker is not None
    assert [g.text for g in h.worker.asked.values()] == ["1", "2", "3", "4"]


def test_a_flood_of_grammars_leaves_room_for_others() -> None:
    h = compiling("fair")
    flood = asks(h, "flood", 1, 64)
    accepted = sum(request.accepted for request in flood)
    assert 40 < accepted < 60
    assert asks(h, "light", 200, 1)[0].accepted
