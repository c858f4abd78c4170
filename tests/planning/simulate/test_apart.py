"""Prompts that simulated replicas compute for others: nobody is lost, and what is fetched is not
computed twice."""

from __future__ import annotations

import pytest

from penstock.config.settings import CacheSettings, EngineConfig
from penstock.errors import InvalidRequest
from penstock_planning.simulate.commands import Synthetic, synthetic
from penstock_planning.simulate.cost import StepCost
from penstock_planning.simulate.report import SimulationReport, as_text, report_of
from penstock_planning.simulate.simulation import Simulation, SimulationOptions
from penstock_planning.simulate.trace import TraceRequest

COST = StepCost(base_ms=5.0, token_ms=0.2, sequence_ms=0.05)
TRAFFIC = Synthetic(rate=6.0, requests=120, prompt=900, prompt_sigma=0.6, output=60)


def simulated(**options: object) -> tuple[Simulation, SimulationReport]:
    config = EngineConfig(cache=CacheSettings(num_kv_blocks=2000))
    options = {"cost": COST, "replicas": 4, "check_every": 50, **options}
    simulation = Simulation(config, SimulationOptions(**options))  # type: ignore[arg-type]
    simulation.run(synthetic(TRAFFIC))
    return simulation, report_of(simulation)


@pytest.mark.slow
def test_streams_are_not_held_up_by_prompts_that_others_compute() -> None:
    together, apart = simulated()[1], simulated(prefill_replicas=2)[1]
    assert apart.completed == together.completed == TRAFFIC.requests
    assert apart.output_tokens == together.output_tokens
    assert together.computed_ahead == 0
    assert apart.itl.p99 is not None
    assert together.itl.p99 is not None
    assert apart.itl.p99 < together.itl.p99 / 2
    assert f"{apart.computed_ahead:,}; blocks fetched" in as_text(apart)
    assert simulated(prefill_replicas=2)[1].digest == apart.digest


def test_long_prompts_are_fetched_and_short_ones_computed_where_they_are_answered() -> None:
    simulation, report = simulated(prefill_replicas=1, prefill_tokens=700)
    prompts = [request.num_prompt for request in synthetic(TRAFFIC)]
    assert report.computed_ahead == sum(length >= 700 for length in prompts)
    whole = sum((length - 1) // 16 for length in prompts if length >= 700)
    assert 0.9 * whole <= report.disk_blocks_read <= whole
    computed = sum(
        replica.core.state.workers.tokens_computed for replica in simulation.replicas[1:]
    )
    short = sum(length for length in prompts if length < 700)
    rest = 16 * report.computed_ahead + report.output_tokens
    assert short < computed < short + rest + 16 * (whole - report.disk_blocks_read)


@pytest.mark.slow
def test_what_is_slow_to_fetch_is_computed() -> None:
    quick, slow = (
        simulated(prefill_replicas=2, transfer_block=seconds)[1] for seconds in (0.0002, 1.0)
    )
    assert slow.completed == quick.completed
    assert slow.disk_blocks_read < 0.2 * quick.disk_blocks_read


def test_streams_alone_make_no_prompt_look_cheap() -> None:
    """Who only answers sees steps of a few tokens for minutes: they say nothing of what computing
    a prompt would take, and so of whether it pays to fetch its KV."""
    streams = [TraceRequest(0.01 * at, 60, 900, "streams") for at in range(16)]
    prompts = [TraceRequest(5.0 + 7.0 * at, 4000, 4, "prompts") for at in range(4)]
    options = SimulationOptions(
        cost=StepCost(base_ms=20.0, token_ms=1.0, sequence_ms=0.1),
        replicas=2,
        prefill_replicas=1,
        transfer_block=0.001,
    )
    config = EngineConfig(cache=CacheSettings(num_kv_blocks=4000))
    simulation = Simulation(config, options)
    simulation.run(streams + prompts)
    report = report_of(simulation)
    assert report.disk_blocks_read == 4 * (3999 // 16)
    assert report.itl.p99 is not None
    assert report.itl.p99 < 70.0, "a step of a prompt takes 100 ms"


def test_workers_die_on_either_side() -> None:
    _, died = simulated(prefill_replicas=2, deaths_per_hour=400.0)
    assert died.worker_deaths > 3
    assert died.completed == TRAFFIC.requests


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prefill_replicas": 4}, "0 to 3 of 4 replicas"),
        ({"prefill_replicas": -1}, "0 to 3 of 4 replicas"),
        ({"prefill_replicas": 1, "prefill_tokens": 0}, "at least 1 token"),
        ({"prefill_replicas": 1, "disk_blocks": 5}, "not both"),
        ({"prefill_replicas": 1, "transfer_block": -1.0}, "a block is read in"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        simulated(**options)
