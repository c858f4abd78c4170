"""`penstock bench steps` measures what plans are made of, also on a slow machine."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from penstock.config.settings import CacheSettings, EngineConfig
from penstock.protocol.from_worker import Result
from penstock.protocol.to_worker import Plan
from penstock_bench.load.options import LoadOptions
from penstock_planning.simulate.cost import StepCost
from penstock_planning.simulate.measure import SEVERAL, LoadShape, parts
from penstock_planning.simulate.replica import SimulatedWorker
from penstock_planning.simulate.simulation import Simulation, SimulationOptions
from penstock_planning.simulate.trace import TraceRequest

SHAPE = LoadShape("uniform:16:512", "uniform:16:96", 42)
SLOW = StepCost(base_ms=10.0, token_ms=1.0, sequence_ms=0.6, context_ms=0.001)
"""Of the default model on two cores without AVX-512."""


def test_each_number_of_streams_has_long_prompts_and_short_ones() -> None:
    found = parts("http://somewhere", SHAPE)
    lone, several = found[0], found[1:]
    places = len(SEVERAL[0])
    for streams, each in [({1}, [lone])] + [
        ({numbers[at] for numbers in SEVERAL}, several[at::places]) for at in range(places)
    ]:
        assert {part.concurrency for part in each} == streams
        seconds = sum(part.max_time or 0.0 for part in each)
        assert seconds == pytest.approx(SHAPE.seconds / (1 + places))
        longest = [part.input_tokens.high for part in each]
        assert max(longest) == 512
        assert each == [lone] or min(longest) <= 16
    assert len({part.seed for part in found}) == len(found)


def test_on_a_slow_machine_batches_of_decodes_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[tuple[Plan, float]] = []
    execute = SimulatedWorker.execute

    def seen(worker: SimulatedWorker, plan: Plan) -> tuple[Result, float]:
        result, seconds = execute(worker, plan)
        steps.append((plan, seconds))
        return result, seconds

    monkeypatch.setattr(SimulatedWorker, "execute", seen)
    short, long = Counter[int](), Counter[int]()
    for part in parts("http://somewhere", SHAPE):
        steps.clear()
        _simulate(part)
        found = short if part.input_tokens.high <= 16 else long
        found.update(_batches(steps, part.max_time or 0.0))
    for numbers in list(zip(*SEVERAL, strict=True))[:-1]:
        assert sum(short[batch] for batch in set(numbers)) >= 8, numbers
    # Long prompts alone would never show what these take.
    assert sum(long[batch] for batch in range(13, 33)) < 4


def _batches(steps: list[tuple[Plan, float]], until: float) -> Iterator[int]:
    """Sizes of the steps that only decode, of those in the first seconds."""
    for plan, seconds in steps:
        until -= seconds
        if until < 0:
            return
        if all(work.count == 1 for work in plan.work):
            yield len(plan.work)


def _simulate(part: LoadOptions) -> None:
    """Its streams are sessions without pauses."""
    rng = random.Random(part.seed)
    requests = [
        TraceRequest(
            0.0,
            part.input_tokens.draw(rng),
            part.output_tokens.draw(rng),
            session=f"stream-{number % part.concurrency}",
        )
        for number in range(2 * part.concurrency)
    ]
    config = EngineConfig(cache=CacheSettings(num_kv_blocks=8192))
    Simulation(config, SimulationOptions(cost=SLOW)).run(requests)
