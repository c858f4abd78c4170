"""Chats and agents of many tenants: what was asked for is what comes."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from penstock.errors import InvalidRequest
from penstock_planning.cells.traffic import MixedTraffic, mixed, parse_mixed
from penstock_planning.simulate.prompts import ANSWER, prompt_of
from penstock_planning.simulate.trace import TraceRequest


def sessions(traffic: MixedTraffic) -> dict[str, list[TraceRequest]]:
    found: dict[str, list[TraceRequest]] = {}
    for request in mixed(traffic):
        found.setdefault(request.session, []).append(request)
    return found


def test_tenants_have_their_shares_and_say_their_sessions_or_not() -> None:
    traffic = MixedTraffic(seconds=2000.0, rate=5.0, tenants=10, skew=1.0, named=0.7)
    first = [turns[0] for turns in sessions(traffic).values()]
    assert len(first) == pytest.approx(10_000, rel=0.05)
    counts = Counter(request.tenant for request in first)
    whole = sum(1 / n for n in range(1, 11))
    for number in (0, 3):
        share = 1 / (number + 1) / whole
        assert counts[f"tenant {number}"] / len(first) == pytest.approx(share, rel=0.1)
    hidden = {request.tenant: request.unnamed for request in first}
    assert sum(hidden.values()) == 3
    agents = sum(request.prefix_tokens == 2 * traffic.system for request in first)
    assert agents / len(first) == pytest.approx(traffic.agents, rel=0.1)


def test_a_turn_begins_with_the_one_before_and_its_answer() -> None:
    several = [turns for turns in sessions(MixedTraffic(rate=1.0)).values() if len(turns) > 2]
    assert len(several) > 50
    for turns in several[:20]:
        for number, (one, following) in enumerate(itertools.pairwise(turns)):
            whole = prompt_of(one, number) + [ANSWER] * one.output_tokens
            assert prompt_of(following, number + 7)[: len(whole)] == whole
            assert following.pause > 0
            assert following.at == one.at


def test_a_tenant_grows_while_it_shall_and_the_others_stay() -> None:
    traffic = MixedTraffic(
        seconds=3000.0, rate=3.0, grows=10.0, grown=6, grows_at=1000.0, grows_for=1000.0
    )
    counts: Counter[tuple[bool, int]] = Counter()
    for turns in sessions(traffic).values():
        counts[turns[0].tenant == "tenant 6", int(turns[0].at // 1000)] += 1
    assert counts[True, 1] == pytest.approx(10 * counts[True, 0], rel=0.25)
    assert counts[True, 2] == pytest.approx(counts[True, 0], rel=0.35)
    assert counts[False, 1] == pytest.approx(counts[False, 0], rel=0.08)


def test_all_come_more_often_once_they_swell() -> None:
    traffic = MixedTraffic(seconds=2000.0, rate=2.0, swells=3.0, swells_at=1000.0)
    firsts = [turns[0].at for turns in sessions(traffic).values()]
    early = sum(at < 1000 for at in firsts)
    assert early == pytest.approx(2000, rel=0.08)
    assert len(firsts) - early == pytest.approx(3 * early, rel=0.08)


def test_a_field_that_is_not_there_is_told() -> None:
    assert parse_mixed("rate=4,seed=3") == MixedTraffic(rate=4.0, seed=3)
    with pytest.raises(InvalidRequest, match=r"unknown field `speed`.*fields: seconds, rate"):
        parse_mixed("speed=1")
    with pytest.raises(InvalidRequest, match="0 to 39"):
        parse_mixed("grown=40")
