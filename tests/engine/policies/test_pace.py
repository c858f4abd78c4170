"""Steps are short enough for those who decode, whatever others bring. Simulated, and by itself."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_engine.policies.pace import LEAST, LONG, SHORT, UNKNOWN, StepPace
from tests.engine.simulated import Simulation
from tests.engine.walked_harness import POLICIES
from tests.met import met

FIXED, EACH = 0.03, 0.003
"""Seconds of a step, and of each token, of a small model on a processor with AVX2."""


def streams_beside(policy: str, tenant: str, slowdown: float = 2.5) -> tuple[float, float]:
    """(longest gap of 16 streams, seconds until ten prompts of 2,000 tokens are computed)."""
    sim = Simulation(
        fixed=FIXED,
        each=EACH,
        settings={
            "scheduling_policy": policy,
            "max_num_seqs": 64,
            "max_num_batched_tokens": 2048,
            "max_step_slowdown": slowdown,
        },
    )
    for _ in range(16):
        sim.ask(0.0, "alice", 40, 3000)
    for _ in range(10):
        sim.ask(5.0, tenant, 2000, 4)
    for second in range(20, 301, 20):
        sim.run(second)
        others = [asked for asked in sim.requests.values() if asked.prompt == 2000]
        if all(asked.ended is not None for asked in others):
            break
    alice = [asked for asked in sim.requests.values() if asked.prompt == 40]
    assert all(asked.ended is not None for asked in others)
    return max(a.longest_gap for a in alice), max(asked.ended or 0.0 for asked in others) - 5.0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("tenant", ["alice", "mallory"])
def test_streams_go_on_beside_long_prompts(policy: str, tenant: str) -> None:
    alone = FIXED + 16 * EACH
    gap, seconds = streams_beside(policy, tenant)
    # The first steps are taken before anybody knows what prefill costs here.
    first = FIXED + EACH * (16 + UNKNOWN) + alone + EACH * LEAST
    assert gap <= max(3.0 * alone, first)
    # Most of the time is the prompts' all the same.
    assert seconds <= 20_000 * EACH * 2.5


def test_without_a_bound_a_prompt_stops_them_all() -> None:
    gap, _ = streams_beside("fcfs", "alice", slowdown=0.0)
    assert gap > 20 * (FIXED + 16 * EACH)


def test_a_newcomer_with_a_claim_takes_no_turn_from_streams() -> None:
    """Under fair, who has had nothing yet may have a whole step's tokens before the others."""
    gap, _ = streams_beside("fair", "mallory")
    assert gap < 1.0


def test_a_tenant_with_many_streams_does_not_slow_one_with_few() -> None:
    sim = Simulation(
        fixed=FIXED,
        each=EACH,
        settings={"scheduling_policy": "fair", "max_num_seqs": 256},
    )
    for _ in range(4):
        sim.ask(0.0, "alice", 20, 800)
    for _ in range(200):
        sim.ask(3.0, "mallory", 20, 60)
    sim.run(150)
    alice = [asked for asked in sim.requests.values() if asked.tenant == "alice"]
    mallory = [asked for asked in sim.requests.values() if asked.tenant == "mallory"]
    assert max(a.longest_gap for a in alice) <= 3.0 * (FIXED + 4 * EACH) + SHORT
    assert all(asked.finish == "length" for asked in mallory)


def test_without_decodes_a_step_is_as_large_as_its_budget_or_long() -> None:
    pace = StepPace(2.5)
    pace.observe(16, 16, 0.1)
    assert pace.tokens(0) == math.inf
    pace.observe(0, 10_000, 10.0)
    assert pace.tokens(0) == pytest.approx(LONG / 0.001, rel=0.05)
    assert StepPace(0.0).tokens(5) == StepPace(0.0).tokens(0) == math.inf


def test_what_a_few_tokens_cost_is_not_taken_for_the_cost_of_thousands() -> None:
    """After short prompts at 0.1 ms a token came a long one whose log-probabilities cost 1.1 ms for
    each: its first step took four seconds."""
    pace = StepPace(2.5)
    for _ in range(20):
        pace.observe(1, 1, 0.008)
        pace.observe(0, 40, 0.012)
    took = []
    for _ in range(6):
        tokens = min(pace.tokens(0), 7000)
        took.append(0.008 + 0.0011 * tokens)
        pace.observe(0, int(tokens), took[-1])
    assert max(took) < 5 * LONG, "of 1,024 tokens"
    assert took[-1] == pytest.approx(LONG, rel=0.1)


@pytest.mark.parametrize(("slowdown", "least", "most"), [(0.0, 10.0, 60.0), (2.0, 0.0, 2.5)])
def test_who_comes_beside_dear_prompts_waits_for_no_whole_budget(
    slowdown: float, least: float, most: float
) -> None:
    """2,048 of these tokens take 24 seconds."""
    settings = {
        "scheduling_policy": "fair",
        "max_num_batched_tokens": 2048,
        "max_step_slowdown": slowdown,
    }
    sim = Simulation(fixed=FIXED, each=0.012, settings=settings)
    for _ in range(8):
        sim.ask(0.0, "mallory", 3000, 4)
    sim.ask(40.0, "alice", 20, 4)
    sim.run(400)
    assert least < next(a.wait for a in sim.requests.values() if a.tenant == "alice") < most


@given(
    st.floats(0.0, 0.2),
    st.floats(1e-4, 0.01),
    st.integers(1, 64),
    st.lists(st.tuples(st.booleans(), st.integers(8, 2048)), min_size=60, max_size=120),
)
def test_what_is_learnt_is_what_steps_cost(
    base: float, each: float, decodes: int, steps: list[tuple[bool, int]]
) -> None:
    pace = StepPace(3.0)
    for alone, prefill in [(True, 0), *steps, *[(True, 0), (False, 500)] * 40]:
        tokens = decodes if alone else decodes + prefill
        pace.observe(decodes, tokens, base + each * tokens)
    first = pace.tokens(decodes)
    pace.observe(decodes, decodes, base + each * decodes)
    allowed = max(first, pace.tokens(decodes))  # One in some is held to less.
    alone_takes = base + each * decodes
    takes = base + each * allowed
    assert allowed >= decodes + LEAST
    wanted = max(SHORT, 3.0 * alone_takes)
    met("more than a short step is allowed", wanted > SHORT)
    met("a short step", wanted == SHORT)
    assert takes <= wanted * 1.1 + LEAST * each + 1e-6
    assert takes >= wanted * 0.75 or allowed == decodes + LEAST


@given(
    st.sampled_from([0.0, 0.01, 0.1, 0.5]),
    st.sampled_from([0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2]),
    st.integers(1, 64),
    st.integers(8, 262_144),
)
def test_a_step_that_costs_much_whatever_is_in_it_is_no_reason_for_small_chunks(
    base: float, each: float, decodes: int, prompt: int
) -> None:
    """Prompts wait all the time, so that no step of decodes alone ever tells what these cost."""
    budget = 262_144
    pace = StepPace(2.5)
    pace.observe(0, prompt, base + each * prompt + 1e-6)
    for _ in range(120):
        tokens = min(budget, int(pace.tokens(decodes)))
        pace.observe(decodes, tokens, base + each * tokens + 1e-6)
    first = pace.tokens(decodes)
    pace.observe(decodes, int(first), base + each * int(first) + 1e-6)
    allowed = min(budget, int(max(first, pace.tokens(decodes))))  # One in some is held to less.
    wanted = max(SHORT, 2.5 * (base + each * decodes))
    met("dear whatever is in it", base > each * prompt)
    met("dear by its tokens", base < each * prompt)
    assert base + each * allowed <= wanted * 1.2 + LEAST * each
    assert base + each * allowed >= wanted * 0.7 or allowed in (budget, decodes + LEAST)


def test_fewer_decodes_than_those_known_are_not_taken_to_cost_nothing() -> None:
    """Tokens that were dear for a while (of long sequences) say little of what decodes cost; taken
    at that, 16 decodes would be free, all that a step takes its prompts' fault, and chunks short
    for good."""
    base, each = 0.03, 0.0035
    pace = StepPace(2.5)
    pace.observe(40, 40, base + each * 40)
    for _ in range(20):
        pace.observe(40, 56, base + each * 40 + 4 * each * 16)
    for _ in range(40):
        tokens = int(pace.tokens(16))
        pace.observe(16, tokens, base + each * tokens)
    assert base + each * pace.tokens(16) >= 0.7 * 2.5 * (base + each * 16)
