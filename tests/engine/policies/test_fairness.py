"""The policy `fair`: weighted shares, and what a flood does to somebody else. Simulated."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest

from penstock_engine.policies.fair_accounts import BLOCK_COST, GENERATED_COST, PROMPT_COST
from tests.engine.simulated import Asked, Given, Simulation, percentile
from tests.thinning import part


def cost(given: Given) -> int:
    return (
        PROMPT_COST * given.prompt
        + GENERATED_COST * given.generated
        + BLOCK_COST * given.block_steps
    )


# What is scarce, and what the tenants ask for: (prompt, output) ranges of a and of b.
SCARCE: dict[str, dict[str, Any]] = {
    "slots": {"max_num_seqs": 16, "max_num_batched_tokens": 2048, "blocks": 4000},
    "budget": {"max_num_seqs": 64, "max_num_batched_tokens": 64, "blocks": 4000},
    "blocks": {"max_num_seqs": 64, "max_num_batched_tokens": 512, "blocks": 160},
}
WORK = {
    "alike": ((20, 200), (10, 100), (20, 200), (10, 100)),
    "long prompts beside long answers": ((200, 900), (2, 8), (8, 20), (100, 300)),
}


@pytest.mark.slow
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("scarce", SCARCE)
def test_weights_of_three_to_one_give_three_to_one(scarce: str, work: str) -> None:
    """Both always have work waiting; the worker's own books are compared, not the policy's."""
    options = dict(SCARCE[scarce])
    blocks = options.pop("blocks")
    draw = random.Random(4)
    a_prompt, a_output, b_prompt, b_output = WORK[work]

    def again(asked: Asked) -> None:
        prompt, output = (a_prompt, a_output) if asked.tenant == "a" else (b_prompt, b_output)
        sim.ask(sim.now, asked.tenant, draw.randint(*prompt), draw.randint(*output))

    sim = Simulation(
        num_blocks=blocks,
        settings={"scheduling_policy": "fair", "tenants": "a:weight=3", **options},
        on_end=again,
    )
    for _ in range(150):
        sim.ask(0.0, "a", draw.randint(*a_prompt), draw.randint(*a_output))
        sim.ask(0.0, "b", draw.randint(*b_prompt), draw.randint(*b_output))
    sim.run(15)
    before = {tenant: cost(given) for tenant, given in sim.given.items()}
    sim.run(15 + part(100, 1 / 4))
    a, b = (cost(sim.given[tenant]) - before[tenant] for tenant in "ab")
    assert 3 * 0.95 <= a / b <= 3 * 1.05


FLOODS = {
    "decodes that fill all slots": {"prompt": (8, 40), "output": (300, 900), "blocks": 20_000},
    "long prompts": {"prompt": (500, 3000), "output": (1, 20), "blocks": 20_000},
    "a full pool": {"prompt": (100, 1500), "output": (50, 600), "blocks": 700},
}


@pytest.mark.slow
@pytest.mark.parametrize("budget", [256, 2048])
@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_costs_a_light_tenant_two_steps_at_most(flood: str, budget: int) -> None:
    """p99 of the time to the first token <= its value alone + 2 x the bound on a step's time."""
    alone, _ = light_waits(None, budget)
    beside, sim = light_waits(flood, budget)
    assert len(beside) == len(alone) > part(150, 1 / 4)
    assert sim.longest_step <= sim.bound
    assert percentile(beside, 0.99) <= percentile(alone, 0.99) + 2 * sim.bound
    assert any(asked.tenant == "heavy" and asked.finish for asked in sim.requests.values())


@functools.cache
def light_waits(flood: str | None, budget: int) -> tuple[list[float], Simulation]:
    """What the light tenant waited for its first tokens; its requests come at random times."""
    what = FLOODS[flood] if flood else {"blocks": 20_000}
    draw = random.Random(7)

    def again(asked: Asked) -> None:
        if asked.tenant == "heavy":
            sim.ask(sim.now, "heavy", draw.randint(*what["prompt"]), draw.randint(*what["output"]))

    sim = Simulation(
        num_blocks=what["blocks"],
        settings={
            "scheduling_policy": "fair",
            "max_num_seqs": 64,
            "max_num_batched_tokens": budget,
        },
        on_end=again,
    )
    if flood:
        for _ in range(200):
            sim.ask(0.0, "heavy", draw.randint(*what["prompt"]), draw.randint(*what["output"]))
    light = random.Random(8)
    at = 10.0
    end = at + part(90, 1 / 4)
    while at < end:
        at += light.uniform(0.3, 0.7)
        sim.ask(at, "light", light.randint(5, min(400, budget)), light.randint(1, 8))
    sim.run(end + 10)
    waits = [asked.wait for asked in sim.requests.values() if asked.tenant == "light"]
    return waits, sim


def test_who_was_away_has_no_claim_to_all_of_the_machine() -> None:
    """After a while with little work, a tenant's flood gets its share and no more."""

    def again(asked: Asked) -> None:
        if asked.tenant == "busy":
            sim.ask(sim.now, "busy", 100, 100)

    sim = Simulation(
        settings={"scheduling_policy": "fair", "max_num_batched_tokens": 128, "max_num_seqs": 64},
        on_end=again,
    )
    away = 20
    for second in range(away):
        sim.ask(float(second), "idle", 4, 4)
    for _ in range(200):
        sim.ask(0.0, "busy", 100, 100)
    sim.run(away)
    for _ in range(400):
        sim.ask(float(away), "idle", 100, 100)
    sim.run(away + 2)
    before = {tenant: cost(given) for tenant, given in sim.given.items()}
    sim.run(away + 10)
    got = {tenant: cost(sim.given[tenant]) - before[tenant] for tenant in before}
    assert 0.9 <= got["idle"] / got["busy"] <= 1.1
