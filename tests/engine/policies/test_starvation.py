"""Any accepted request is served in bounded steps, under any mix that goes on for ever."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock_engine.policies.registry import known_policies
from tests.engine.simulated import Asked, Simulation
from tests.engine.walked_harness import POLICIES
from tests.met import met
from tests.thinning import part

KNOWN = known_policies()
POOL = 40
"""Blocks of 16 tokens: room for one of the longest, and a little."""

Mix = list[tuple[str, int, int, int, int]]
"""Endless streams: (tenant, priority, prompt, output, how many at once)."""

streams = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.integers(-2, 2),
        st.integers(1, 400),
        st.integers(1, 60),
        st.integers(1, 6),
    ),
    min_size=1,
    max_size=5,
)


def until_all_end(policy: str, mix: Mix, watched: Mix, slots: int, budget: int) -> Simulation:
    """Runs the streams for ever, and the watched requests once, until those have ended.

    Raises AssertionError when one has not after 40,000 steps.
    """

    def again(asked: Asked) -> None:
        if asked.again is not None:
            priority = _allowed(policy, asked.again[3])
            sim.ask(sim.now, *asked.again[:3], again=asked.again, priority=priority)

    sim = Simulation(
        fixed=1.0,
        each=0.0,
        num_blocks=POOL,
        settings={
            "scheduling_policy": policy,
            "max_num_seqs": slots,
            "max_num_batched_tokens": budget,
            "tenants": "a:weight=5",
            "max_model_len": 16 * POOL,
        },
        on_end=again,
    )
    for tenant, priority, prompt, output, many in mix:
        asks = (tenant, prompt, output, priority)
        for _ in range(many):
            sim.ask(0.0, *asks[:3], priority=_allowed(policy, priority), again=asks)
    for tenant, priority, prompt, output, _ in watched:
        sim.ask(50.0, tenant, prompt, output, priority=_allowed(policy, priority))
    until = 50.0
    while until < 40_000:
        until += 500
        sim.run(until)
        left = [r for r in sim.requests.values() if r.again is None and r.ended is None]
        if not left and sim.now > 50:
            return sim
    raise AssertionError(f"never served: {left}")


def _allowed(policy: str, priority: int) -> int:
    return priority if KNOWN[policy].ages else 0


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=part(10, 1 / 3), deadline=None, suppress_health_check=list(HealthCheck))
@given(mix=streams, watched=streams, slots=st.integers(1, 8), budget=st.integers(4, 256))
def test_nobody_starves(policy: str, mix: Mix, watched: Mix, slots: int, budget: int) -> None:
    met("more streams than slots", sum(many for *_, many in mix) > slots)
    until_all_end(policy, mix, watched, slots, budget)


@pytest.mark.parametrize("policy", [name for name in POLICIES if KNOWN[name].makes_way])
@pytest.mark.parametrize("seed", range(4))
def test_the_largest_is_served_beside_a_stream_of_small_ones(policy: str, seed: int) -> None:
    """It needs all of the pool, which is never free by itself."""
    draw = random.Random(seed)
    mix = [
        (tenant, draw.randint(-1, 0), draw.randint(5, 60), draw.randint(10, 60), 6)
        for tenant in ("a", "b", "c")
    ]
    largest = [("d", 1, 16 * POOL - 30, 20, 1)]
    until_all_end(policy, mix, largest, slots=12, budget=64)
