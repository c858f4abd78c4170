"""Steps at once, against one after the other: by the same rules, and by the production core."""

from __future__ import annotations

import heapq
import math
import random
from typing import Any

import pytest

from penstock.config.settings import CacheSettings, EngineConfig, SchedulerSettings
from penstock.errors import InvalidRequest
from penstock_planning.cells.asks import Ask
from penstock_planning.cells.modelled import ModelledEngine
from penstock_planning.cells.prefixes import HeldPrefixes
from penstock_planning.cells.report import CellsReport, cells_report
from penstock_planning.cells.simulation import CellsOptions, CellsSimulation
from penstock_planning.cells.stretch import Stretch, StretchPace
from penstock_planning.cells.traffic import MixedTraffic, mixed
from penstock_planning.simulate.cost import StepCost
from penstock_planning.simulate.trace import TraceRequest

COST = StepCost(base_ms=17.0, token_ms=0.0, hidden_ms=1.9, sequence_ms=1.1, read_ms=0.0007)
FLAT = StepCost(base_ms=17.0, token_ms=0.1, hidden_ms=1.9, sequence_ms=1.1)


def engine(cost: StepCost, max_seqs: int = 64, in_flight: int = 1) -> ModelledEngine:
    pace = StretchPace(cost, 2048, 2.0, 0.05)
    return ModelledEngine("e", pace, HeldPrefixes(100_000, 16), "fcfs", max_seqs, in_flight)


def run(modelled: ModelledEngine, asks: list[Ask]) -> None:
    coming = list(asks)
    while coming or modelled.due < math.inf:
        if coming and coming[0].arrival <= modelled.due:
            ask = coming.pop(0)
            modelled.submit(ask, ask.arrival)
        else:
            modelled.advance(modelled.due)


def largest_chunk(cost: StepCost, decodes: int) -> int:
    """Counted up, one token after the other."""
    limit = max(0.05, 2 * cost.seconds(decodes, decodes, 0)) if decodes else 0.25
    chunk = 16
    while chunk < 2048 - decodes and cost.seconds(decodes + chunk + 1, decodes + 1, 0) <= limit:
        chunk += 1
    return chunk


def step_by_step(cost: StepCost, asks: list[Ask], max_seqs: int) -> dict[int, tuple[float, float]]:
    """(first token, last token) of each."""
    coming = [(ask.arrival, ask.number, ask) for ask in asks]
    heapq.heapify(coming)
    waiting: list[Ask] = []
    prompts: list[list[Any]] = []  # [ask, tokens left]
    decoding: list[list[Any]] = []  # [ask, tokens left]
    now, first, last = 0.0, dict[int, float](), dict[int, float]()
    while coming or waiting or prompts or decoding:
        if not (waiting or prompts or decoding):
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            waiting.append(heapq.heappop(coming)[2])
        while waiting and len(prompts) + len(decoding) < max_seqs:
            ask = waiting.pop(0)
            prompts.append([ask, ask.request.num_prompt])
        decodes = len(decoding)
        budget = largest_chunk(cost, decodes) if prompts else 0
        chunk = min(budget, sum(left for _, left in prompts))
        now += cost.seconds(decodes + chunk, decodes + bool(chunk), 0)
        for each in decoding:
            each[1] -= 1
        done = [each for each in decoding if not each[1]]
        decoding = [each for each in decoding if each[1]]
        for ask, _ in done:
            last[ask.number] = now
        while prompts and chunk:
            some = min(chunk, prompts[0][1])
            prompts[0][1] -= some
            chunk -= some
            if prompts[0][1]:
                break
            ask, _ = prompts.pop(0)
            first[ask.number] = now
            if ask.request.output_tokens > 1:
                decoding.append([ask, ask.request.output_tokens - 1])
            else:
                last[ask.number] = now
    return {number: (first[number], last[number]) for number in first}


@pytest.mark.parametrize("max_seqs", [3, 64])
def test_steps_at_once_are_those_one_after_the_other(max_seqs: int) -> None:
    rng = random.Random(max_seqs)
    at, asks = 0.0, []
    for number in range(150):
        at += rng.expovariate(1.2)
        request = TraceRequest(at, rng.randint(1, 900), rng.choice([1, 2, rng.randint(3, 90)]))
        asks.append(Ask(request, number, at))
    expected = step_by_step(FLAT, asks, max_seqs)
    modelled = engine(FLAT, max_seqs)
    run(modelled, asks)
    for ask in asks:
        assert (ask.first, ask.last) == pytest.approx(expected[ask.number], rel=1e-9)
        assert ask.left == 0


def test_a_stretch_takes_what_its_steps_take_together() -> None:
    rng = random.Random(4)
    for _ in range(200):
        stretch = Stretch(rng.randint(1, 40), rng.uniform(0.01, 0.1), rng.uniform(0, 0.001), 0)
        each = [stretch.first + stretch.growth * n for n in range(stretch.steps)]
        assert stretch.seconds(stretch.steps) == pytest.approx(sum(each))
        for done in range(stretch.steps + 1):
            assert stretch.whole_steps(sum(each[:done]) + 1e-7) == done
            assert stretch.whole_steps(sum(each[:done]) - 1e-7) == max(0, done - 1)


def test_what_is_lost_has_the_tokens_that_came_by_then() -> None:
    modelled = engine(FLAT)
    ask = Ask(TraceRequest(0.0, 100, 50), 1, 0.0)
    modelled.submit(ask, 0.0)
    modelled.advance(modelled.due)
    first = ask.first
    each = FLAT.seconds(1, 1, 0)
    assert modelled.lose(first + 10.5 * each) == [ask]
    assert ask.emitted == 11
    assert ask.left == 39
    assert modelled.due == math.inf


def both(policy: str, seed: int) -> tuple[CellsReport, CellsReport]:
    config = EngineConfig(
        cache=CacheSettings(num_kv_blocks=2500),
        scheduler=SchedulerSettings(scheduling_policy=policy),
    )
    requests = list(mixed(MixedTraffic(seconds=100.0, rate=0.8, tenants=12, seed=seed)))
    found = []
    for steps_at_once in (True, False):
        options = CellsOptions(cost=COST, cells=2, replicas=3, steps_at_once=steps_at_once)
        simulation = CellsSimulation(config, options)
        simulation.run(requests)
        found.append(cells_report(simulation))
    return found[0], found[1]


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "median", "late"), [("fcfs", 0.10, 0.15), ("fair", 0.25, 0.30)])
def test_the_model_is_near_the_production_engine_core(
    policy: str, median: float, late: float
) -> None:
    """Of first tokens, the median and the p95; tokens and hits are nearer. Three traces each."""
    runs = [both(policy, seed) for seed in range(3)]

    def off(which: Any) -> float:
        """How far the three runs' mean is off."""
        modelled, production = (sum(which(run[n].windows[0]) for run in runs) for n in (0, 1))
        return float(abs(modelled / production - 1))

    assert off(lambda w: w.first_token.p50) < median
    assert off(lambda w: w.first_token.p95) < late
    assert off(lambda w: w.per_token.p50) < 0.05
    assert off(lambda w: w.per_token.p95) < 0.10
    assert off(lambda w: w.prefix_hits) < 0.03
    for modelled, production in runs:
        assert modelled.requests == production.requests
        assert modelled.steps == pytest.approx(production.steps, rel=0.05)
        assert modelled.events < production.events / 5


def test_it_models_what_it_says_it_models() -> None:
    config = EngineConfig(
        cache=CacheSettings(num_kv_blocks=100),
        scheduler=SchedulerSettings(scheduling_policy="priority"),
    )
    with pytest.raises(InvalidRequest, match="fcfs, fair"):
        CellsSimulation(config, CellsOptions())
