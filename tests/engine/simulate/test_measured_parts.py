"""`penstock bench steps` measures what plans are made of, also on a slow machine."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from penstock.bench.load.options import LoadOptions
from penstock.bench.steps import STREAMS, LoadShape, parts
from penstock.config.settings import CacheSettings, EngineConfig
from penstock.protocol.from_worker import Result
from penstock.protocol.to_worker import Plan
from penstock_engine.simulate.cost import StepCost
from penstock_engine.simulate.replica import SimulatedWorker
from penstock_engine.simulate.simulation import Simulation, SimulationOptions
from penstock_engine.simulate.trace import TraceRequest

SHAPE = LoadShape("uniform:16:512", "uniform:16:96", 42)
SLOW = StepCost(base_ms=10.0, token_ms=1.0, sequence_ms=0.6, context_ms=0.001)
"""Of the default model on two cores without AVX-512."""


def test_each_number_of_streams_has_long_prompts_and_short_ones() -> None:
    found = parts("http://somewhere", SHAPE)
    seconds = dict.fromkeys(STREAMS, 0.0)
    for part in found:
        assert part.max_time is not None
        seconds[part.concurrency] += part.max_time
    assert seconds == pytest.approx(dict.fromkeys(STREAMS, SHAPE.seconds / len(STREAMS)))
    for streams in STREAMS[1:]:
        longest = {part.input_tokens.high for part in found if part.concurrency == streams}
        assert max(longest) == 512
        assert min(longest) <= 16
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
    for batch in (2, 4, 8, 16, 32):
        assert short[batch] >= 8, batch
    # Long prompts alone would never show what these take.
    assert long[16] + long[32] < 4


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
