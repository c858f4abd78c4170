"""Which engine core gets a request: the rules that hold for any prompts and any loads."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from penstock.client.routing import (
    AFFINITY_TOKENS,
    LOAD_FACTOR,
    SESSION_LOAD_FACTOR,
    LeastLoaded,
    PrefixAffinity,
    RoutingRequest,
    load_bound,
    prefix_key,
    rendezvous,
    session_key,
)
from penstock.client.routing_policies import POLICIES, RoundRobin, make_routing
from penstock.errors import StartupError
from tests.met import met


@dataclass(frozen=True)
class Engine:
    endpoint: str
    load: int = 0
    block_size: int = 16


tokens = st.tuples(st.integers(0, 149_999), st.integers(40, 300) | st.integers(1, 300)).map(
    lambda drawn: [(drawn[0] + 7919 * at) % 150_000 for at in range(drawn[1])]
)
"""Prompts of any length, most of which fill some blocks."""
loads = st.lists(st.sampled_from([0, 1, 5, 300]), min_size=2, max_size=12) | st.lists(
    st.integers(0, 300), min_size=1, max_size=64
)
"""Also of fleets in which one or two have nearly all that there is."""
asks = st.builds(
    RoutingRequest,
    tokens,
    st.integers(40, AFFINITY_TOKENS) | st.integers(1, AFFINITY_TOKENS),
    st.sampled_from(["", "ann", "bob"]),
    st.sampled_from(["", "salt"]),
)


def fleet(loads: list[int]) -> list[Engine]:
    return [Engine(f"tcp://10.0.0.{n}:5570", load) for n, load in enumerate(loads)]


@given(asks, loads, st.randoms(use_true_random=False))
def test_every_gateway_decides_alike(
    ask: RoutingRequest, loads: list[int], order: random.Random
) -> None:
    engines = fleet(loads)
    shuffled = order.sample(engines, len(engines))
    again = RoutingRequest(list(ask.prompt_token_ids), ask.affinity, ask.tenant, ask.salt)
    met("several to choose from", len(engines) > 1)
    for policy in (PrefixAffinity, LeastLoaded):
        assert policy().choose(ask, engines) == policy().choose(again, shuffled)


@given(asks, st.integers(2, 16), st.data())
def test_an_engine_that_leaves_moves_only_its_own(
    ask: RoutingRequest, count: int, data: st.DataObject
) -> None:
    engines = fleet([0] * count)
    favourite, why = PrefixAffinity().choose(ask, engines)
    leaving = favourite if data.draw(st.booleans()) else data.draw(st.sampled_from(engines))
    met("the favourite leaves", leaving is favourite and why == "prefix")
    met("another one leaves", leaving is not favourite)
    left = [each for each in engines if each is not leaving]
    after, _ = PrefixAffinity().choose(ask, left)
    if leaving is not favourite:
        assert after == favourite
    elif why == "prefix":
        # And one that is back has them again.
        assert PrefixAffinity().choose(ask, [*left, leaving])[0] == favourite


@given(asks, loads, st.booleans())
def test_nobody_is_loaded_above_the_bound(
    ask: RoutingRequest, loads: list[int], busy: bool
) -> None:
    engines = fleet(loads)
    if busy and (first := prefix_key(ask, 16)) is not None:
        loads[engines.index(rendezvous(first, engines)[0])] += 400
        engines = fleet(loads)
    chosen, why = PrefixAffinity().choose(ask, engines)
    mean_then = (sum(loads) + 1) / len(loads)
    if why != "only":
        assert chosen.load + 1 <= math.ceil(LOAD_FACTOR * mean_then)
    key = prefix_key(ask, 16)
    if key is None or why == "only":
        return
    order = rendezvous(key, engines)
    # Whoever comes before it in the prompt's order was too busy.
    before = order[: order.index(chosen)]
    met("the favourite is busy", before)
    met("it isn't", not before)
    assert all(each.load >= load_bound(loads) for each in before)
    assert (why == "prefix") == (not before)


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=16, max_size=16), min_size=50, max_size=300),
    st.integers(2, 8),
)
def test_loads_stay_bounded_while_requests_come(prompts: list[list[int]], count: int) -> None:
    engines = fleet([0] * count)
    met("prompts that begin alike", len({*map(tuple, prompts)}) < len(prompts))
    for number, prompt in enumerate(prompts, 1):
        chosen, _ = PrefixAffinity().choose(RoutingRequest(prompt, 128), engines)
        at = engines.index(chosen)
        engines[at] = replace(chosen, load=chosen.load + 1)
        assert engines[at].load <= math.ceil(LOAD_FACTOR * number / count)


@given(tokens, st.integers(2, 16))
def test_prompts_that_begin_alike_meet_at_one_engine(tail: list[int], count: int) -> None:
    engines = fleet([0] * count)
    prefix = list(range(AFFINITY_TOKENS))
    met("a longer prompt", tail)
    policy = PrefixAffinity()
    here = policy.choose(RoutingRequest(prefix, 128), engines)
    assert policy.choose(RoutingRequest([*prefix, *tail], 128), engines) == here
    assert here[1] == "prefix"


@given(st.integers(16, 128), st.lists(st.integers(0, 9), min_size=16, max_size=200) | st.just([]))
def test_a_beams_children_follow_their_parent(length: int, grown: list[int]) -> None:
    engines = fleet([0] * 8)
    prompt = list(range(1000, 1000 + length))
    met("grown by a block", len(grown) >= 16)
    parent = PrefixAffinity().choose(RoutingRequest(prompt, length), engines)
    assert PrefixAffinity().choose(RoutingRequest([*prompt, *grown], length), engines) == parent


@given(st.lists(st.integers(0, 9), min_size=1, max_size=15), loads)
def test_a_prompt_without_a_block_goes_to_the_least_loaded(
    prompt: list[int], loads: list[int]
) -> None:
    engines = fleet(loads)
    chosen, why = PrefixAffinity().choose(RoutingRequest(prompt, 128), engines)
    met("different loads", len({*loads}) > 1)
    assert chosen.load == min(loads)
    assert why == ("only" if len(loads) == 1 else "load")


def test_a_key_covers_whole_blocks_and_seldom_changes() -> None:
    prompt = list(range(500))
    keys = {prefix_key(RoutingRequest(prompt[:length], 128), 16) for length in range(16, 501)}
    assert len(keys) == 4, "of 16, 32, 64 and 128 tokens"
    assert prefix_key(RoutingRequest(prompt[:15], 128), 16) is None
    # An encoder's block is its longest input: nothing is shared there.
    assert prefix_key(RoutingRequest(prompt, 128), 512) is None
    assert prefix_key(RoutingRequest(prompt, 256), 256) is not None


def test_blocks_are_shared_inside_a_tenant_and_salt_only() -> None:
    prompt = list(range(64))
    keys = [
        prefix_key(RoutingRequest(prompt, 128, tenant, salt), 16)
        for tenant, salt in (("", ""), ("a", ""), ("", "a"), ("a", "b"), ("ab", ""), ("1 a", ""))
    ]
    assert len(set(keys)) == len(keys)


names = st.text(min_size=1, max_size=20)


@given(asks, names, tokens, loads, st.booleans())
def test_a_session_stays_where_it_is_while_that_is_not_busy(
    ask: RoutingRequest, name: str, later: list[int], loads: list[int], most: bool
) -> None:
    engines = fleet(loads)
    turn = structs.replace(ask, session=name)
    if most and (named := session_key(turn)) is not None:
        loads[engines.index(rendezvous(named, engines)[0])] += 2 * sum(loads) + 400
        engines = fleet(loads)
    chosen, why = PrefixAffinity().choose(turn, engines)
    again = structs.replace(turn, prompt_token_ids=later, salt="other")
    assert PrefixAffinity().choose(again, engines) == (chosen, why)
    key = session_key(turn)
    assert key is not None
    favourite = rendezvous(key, engines)[0]
    if why != "only":
        busy = favourite.load >= load_bound(loads, SESSION_LOAD_FACTOR)
        met("the session's favourite is busy", busy)
        met("it isn't", not busy)
        assert (why == "session") == (chosen == favourite) == (not busy)
        mean_then = (sum(loads) + 1) / len(loads)
        assert chosen.load + 1 <= math.ceil(SESSION_LOAD_FACTOR * mean_then)


@given(
    tokens | st.lists(st.integers(0, 9), min_size=1, max_size=15),
    st.integers(2, 12),
    st.integers(0, 40),
)
def test_equal_requests_that_are_to_meet_do(prompt: list[int], count: int, busy: int) -> None:
    """Also short ones, and while the first of them is what its engine core does."""
    ask = RoutingRequest(prompt, AFFINITY_TOKENS, meets=True)
    policy, engines = PrefixAffinity(), fleet([busy] * count)
    met("too short for a block", len(prompt) < 16)
    first, _ = policy.choose(ask, engines)
    loaded = [replace(each, load=busy + (each == first)) for each in engines]
    again, _ = policy.choose(ask, loaded)
    assert again.endpoint == first.endpoint
    full = [replace(each, load=(1 + busy) * 100 * (each == first)) for each in engines]
    assert policy.choose(ask, full)[0].endpoint != first.endpoint or count == 2


def test_sessions_that_begin_alike_are_spread_evenly() -> None:
    engines = fleet([0] * 4)
    system_prompt = list(range(500))
    asked = [RoutingRequest(system_prompt, 128, session=f"agent {n}") for n in range(4000)]
    counts = Counter(PrefixAffinity().choose(ask, engines)[0].endpoint for ask in asked)
    assert all(abs(count - 1000) < 5 * math.sqrt(1000) for count in counts.values())
    whose = [("a", "b"), ("", "a b"), ("a", "c"), ("1 a", "b"), ("", "1 a b")]
    keys = {session_key(RoutingRequest([1], 1, tenant, session=name)) for tenant, name in whose}
    assert len(keys) == 5


def test_favourites_are_spread_evenly() -> None:
    engines = fleet([0] * 4)
    rng = random.Random(1)
    asked = [RoutingRequest([rng.randrange(50_000) for _ in range(32)], 128) for _ in range(4000)]
    counts = Counter(PrefixAffinity().choose(ask, engines)[0].endpoint for ask in asked)
    assert len(counts) == 4
    assert all(abs(count - 1000) < 5 * math.sqrt(1000) for count in counts.values())
    # Equal loads alone don't send every short prompt to the same one either.
    short = Counter(
        LeastLoaded().choose(RoutingRequest(ask.prompt_token_ids[:4], 128), engines)[0].endpoint
        for ask in asked
    )
    assert all(abs(count - 1000) < 5 * math.sqrt(1000) for count in short.values())


def test_round_robin_takes_turns() -> None:
    engines = fleet([9, 0, 0])
    policy = RoundRobin()
    chosen = [policy.choose(RoutingRequest([1], 128), engines)[0] for _ in range(6)]
    assert chosen == engines * 2


def test_a_policy_that_does_not_exist() -> None:
    assert {type(make_routing(name)) for name in POLICIES} == {
        PrefixAffinity,
        LeastLoaded,
        RoundRobin,
    }
    with pytest.raises(StartupError, match="best; allowed: prefix, least-loaded, round-robin"):
        make_routing("best")
