"""Plans against queueing theory, and against one another."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.config.settings import CacheSettings, EngineConfig, SchedulerSettings
from penstock.errors import InvalidRequest
from penstock_planning.plan.command import PlanRequest, plan_of
from penstock_planning.plan.objective import LatencyBound, parse_slo
from penstock_planning.plan.plan import CapacityPlan, PlanTerms, make_plan
from penstock_planning.plan.search import Planner, knee
from penstock_planning.plan.traffic import PlanTraffic
from penstock_planning.plan.trial import CoreLayout, run_trial
from penstock_planning.simulate.commands import Synthetic
from penstock_planning.simulate.cost import FittedCost, StepCost
from penstock_planning.simulate.simulation import Simulation
from penstock_planning.simulate.trace import TraceRequest

LOOSE = parse_slo("ttft_p95=1000s")


def config(blocks: int = 4096, **scheduler: Any) -> EngineConfig:
    return EngineConfig(
        cache=CacheSettings(num_kv_blocks=blocks), scheduler=SchedulerSettings(**scheduler)
    )


def traffic(rate: float, requests: int = 150, **more: Any) -> PlanTraffic:
    given = {"prompt": 60, "output": 6, "seed": 3, **more}
    return PlanTraffic(Synthetic(rate=rate, requests=requests, **given), requests)


def layout(settings: EngineConfig | None = None, **more: Any) -> CoreLayout:
    cost = StepCost(base_ms=10.0, token_ms=0.1, sequence_ms=0.5)
    return CoreLayout(**{"config": settings or config(), "cost": cost, **more})


def test_one_sequence_at_a_time_of_equal_length_is_an_m_d_1_queue() -> None:
    """Pollaczek and Khinchine: the mean wait is ρ D / (2 (1 − ρ)), of services of D seconds."""
    service, load = 0.1, 0.6
    alike = {"prompt_sigma": 0.0, "output_sigma": 0.0, "output": 1}
    one = layout(
        config(max_num_seqs=1, max_steps_in_flight=1),
        cost=StepCost(base_ms=100.0, token_ms=0.0, sequence_ms=0.0),
    )
    source = traffic(load / service, 4000, **alike)
    simulation = Simulation(one.config, one.options(1))
    simulation.run(source.requests())
    expected = service + load * service / (2 * (1 - load))
    assert simulation.metrics.ttft.mean == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("rate", [6.0, 40.0])
def test_littles_law_holds(rate: float) -> None:
    """L = λ W, where L is what Poisson arrivals find there, who see time averages (Wolff, 1982)."""
    found, source = layout(), traffic(rate, 1000)
    simulation = Simulation(found.config, found.options(2))
    seen = []

    def watched() -> Iterator[TraceRequest]:
        for request in source.requests():
            yield request
            # The next one is asked for as this one arrives.
            seen.append(sum(replica.load for replica in simulation.replicas))

    simulation.run(watched())
    assert sum(seen) / len(seen) == pytest.approx(rate * simulation.metrics.e2e.mean, rel=0.12)


def test_more_load_is_never_faster_and_more_cores_never_slower() -> None:
    planner = Planner(layout(), traffic(25.0, 150), LOOSE)
    by_load = [planner.at(1, load) for load in (0.25, 0.5, 1.0, 2.0)]
    by_cores = [planner.at(cores) for cores in (1, 2, 4)]
    for trials in (by_load, by_cores[::-1]):
        for figure in ("ttft_ms", "itl_ms", "e2e_ms"):
            values = [getattr(trial, figure)["p95"] for trial in trials]
            assert values == sorted(values), figure
    busy = [trial.busy for trial in by_load]
    assert busy == sorted(busy)


def plan(rate: float = 60.0, slo: str = "ttft_p95=200ms,itl_p95=25ms", **more: Any) -> CapacityPlan:
    own = {name: more.pop(name) for name in ("layout", "traffic") if name in more}
    terms = PlanTerms(bounds=parse_slo(slo), **{"most": 8, **more})
    return make_plan(own.get("layout", layout()), own.get("traffic", traffic(rate)), terms)


def test_the_fewest_cores_hold_it_and_one_less_does_not() -> None:
    found = plan(traffic=traffic(60.0, 80))
    by_cores = {trial.cores: trial for trial in found.trials}
    assert found.cores is not None
    assert found.cores > 1
    assert by_cores[found.cores].holds
    assert not by_cores[found.cores - 1].holds
    assert by_cores[found.cores].bounds["ttft_p95"] == pytest.approx(
        by_cores[found.cores].ttft_ms["p95"]
    )
    assert found.knee is not None
    assert found.knee >= found.rate
    at_knee = knee(found.curve)
    assert at_knee is not None
    beyond = next(trial for trial in found.curve if trial.load > at_knee.load)
    assert not beyond.holds


def test_the_same_seed_gives_the_same_plan() -> None:
    cost = StepCost(base_ms=10.0, token_ms=0.1, spread=(0.8, 1.0, 1.4))
    one, other = (
        plan(layout=layout(cost=cost), traffic=traffic(20.0, 20), cores=2) for _ in range(2)
    )
    assert one == other
    assert one.trials


def test_a_spread_of_steps_spreads_what_lies_between_tokens() -> None:
    even = StepCost(base_ms=10.0, token_ms=0.0, sequence_ms=0.0)
    spread = StepCost(base_ms=10.0, token_ms=0.0, sequence_ms=0.0, spread=(0.5, 1.0, 1.5))
    one, other = (
        run_trial(layout(cost=cost), 1, traffic(0.5, 60).requests(), LOOSE, rate=0.5)
        for cost in (even, spread)
    )
    assert one.itl_ms["p95"] == pytest.approx(10.0, rel=0.01)
    assert other.itl_ms["p95"] == pytest.approx(15.0, rel=0.01)
    assert other.itl_ms["p50"] == pytest.approx(10.0, rel=0.01)


def test_an_objective_that_no_number_holds_is_said_to_be_such() -> None:
    found = plan(slo="itl_p95=5ms")
    assert found.cores is None
    assert not found.lone.holds
    assert any("No number of engine cores" in note for note in found.notes)


def test_more_than_the_most_cores_is_no_number() -> None:
    found = plan(rate=400.0, most=2)
    assert found.cores is None
    assert found.lone.holds
    assert max(trial.cores for trial in found.trials) == 2


def test_what_time_outside_the_engine_takes_counts_before_the_first_token() -> None:
    near, far = (
        run_trial(layout(gateway=each), 1, traffic(1.0, 50).requests(), LOOSE, rate=1.0)
        for each in (0.0, 0.25)
    )
    assert near.ttft_ms["p95"] is not None
    assert far.ttft_ms["p95"] == pytest.approx(near.ttft_ms["p95"] + 250)
    assert far.itl_ms == near.itl_ms


def test_what_limits_is_named() -> None:
    slo = parse_slo("ttft_p95=200ms")

    def limit(settings: EngineConfig, rate: float = 40.0) -> str:
        source = traffic(rate, 100, output=20, prompt_sigma=0.0, output_sigma=0.0)
        return run_trial(layout(settings), 1, source.requests(), slo, rate=rate).limit

    assert "max_num_seqs" in limit(config(max_num_seqs=2))
    assert "KV blocks" in limit(config(blocks=24))
    assert "compute" in limit(config(), 200.0)
    assert "refused" in limit(config(max_num_seqs=2, max_waiting_requests=3))
    assert "of its bound" in limit(config(), 1.0)


def test_what_if() -> None:
    found = plan(
        traffic=traffic(20.0, 40, prompt=100, output=8),
        changes=("reuse=0.75", "max_num_seqs=1", "apart=0.3,apart_tokens=50"),
    )
    reuse, few, apart = found.what_if
    assert found.cores is not None
    assert reuse.cores is not None
    assert few.cores is not None
    assert reuse.cores <= found.cores
    assert few.cores > found.cores
    assert reuse.trial.reused > 0.2 > found.trials[-1].reused
    assert apart.trial.prefill_cores >= 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("speed=2", "no 'speed'; it takes reuse, routing"),
        ("", "no ''"),
        ("max_num_seqs=0", "max_num_seqs: 0 is not allowed"),
        ("max_num_seqs=few", "max_num_seqs: 'few' is not allowed"),
        ("reuse=2", "reuse must be in 0 to 1"),
        ("reuse=half", "'half' is no reuse"),
        ("apart=1", "apart must be in 0 to 1"),
        ("routing=none", "unknown routing policy 'none'"),
        ("draft_tokens=1000", "tokens can be drafted"),
        ("acceptance=nan", "acceptance must be in 0 to 1"),
    ],
)
def test_a_change_that_cannot_be_is_named(change: str, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        plan(changes=(change,))


@pytest.mark.parametrize(
    ("terms", "named"),
    [
        ({"most": 0}, "--max-cores"),
        ({"cores": 5000}, "--cores"),
        ({"changes": ("reuse=0",) * 17}, "17"),
    ],
)
def test_terms_are_bounded(terms: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        plan(**terms)


def test_a_bound_of_nothing_holds() -> None:
    """Answers of one token have nothing between tokens."""
    source = traffic(1.0, 20, output=1, output_sigma=0.0)
    bounds = (LatencyBound("itl", 95, 1e-6),)
    trial = run_trial(layout(), 1, source.requests(), bounds, rate=1.0)
    assert trial.holds
    assert trial.itl_ms["p95"] is None
    assert not math.isnan(trial.busy)


@pytest.mark.parametrize(("error", "said"), [(4.0, False), (30.0, True)])
def test_a_fit_that_tells_little_is_said_to(tmp_path: Path, error: float, said: bool) -> None:
    fitted = FittedCost(
        cost=layout().cost,
        steps=100,
        error_percent=error,
        error_p95_percent=error,
        total_error_percent=0.0,
        about={"num_kv_blocks": 512, "gateway_ms": 3.0},
    )
    (tmp_path / "steps.json").write_bytes(msgspec.json.encode(fitted))
    asked = PlanRequest(
        slo="ttft_p95=1s",
        rate=1.0,
        requests=10,
        output_tokens=4,
        step_cost=str(tmp_path / "steps.json"),
        cores=1,
    )
    found = plan_of(asked, EngineConfig())
    assert found.settings["num_kv_blocks"] == 512
    assert any("Measure them again" in note for note in found.notes) is said
