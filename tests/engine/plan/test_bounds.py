"""How much is simulated for a plan, and that what is left out would have changed nothing."""

from __future__ import annotations

import pytest

from penstock.config.settings import CacheSettings, EngineConfig, SchedulerSettings
from penstock_engine.plan.as_text import as_text
from penstock_engine.plan.objective import parse_slo
from penstock_engine.plan.plan import CapacityPlan, PlanTerms, make_plan
from penstock_engine.plan.search import CURVE_SHARE, Planner
from penstock_engine.plan.traffic import PlanTraffic
from penstock_engine.plan.trial import CoreLayout, PlanTrial
from penstock_engine.simulate.commands import Synthetic
from penstock_engine.simulate.cost import StepCost

SLO = parse_slo("ttft_p95=1s,itl_p95=60ms")
SLOW = StepCost(base_ms=10.0, token_ms=1.0, sequence_ms=0.6, context_ms=0.001)


@pytest.fixture(scope="module")
def layout() -> CoreLayout:
    config = EngineConfig(cache=CacheSettings(num_kv_blocks=4096), scheduler=SchedulerSettings())
    return CoreLayout(config=config, cost=SLOW)


def traffic(requests: int, rate: float = 6.0) -> PlanTraffic:
    return PlanTraffic(Synthetic(rate=rate, requests=requests, prompt=60, output=12), requests)


def planner(layout: CoreLayout, source: PlanTraffic) -> Planner:
    return Planner(layout, source, SLO)


def test_a_trial_that_cannot_hold_ends_and_would_not_have_held(layout: CoreLayout) -> None:
    source = traffic(400)
    trial = planner(layout, source).at(1)
    assert (trial.ended, trial.holds) == ("late", False)
    assert trial.requests < 200
    # The same requests without an end: as an objective that nothing can break has none.
    whole = Planner(layout, source, parse_slo("ttft_p95=80000s")).at(1)
    assert (whole.ended, whole.requests) == ("", 400)
    assert whole.ttft_ms["p95"] is not None
    assert whole.ttft_ms["p95"] > 1000
    # What a core can do is known by then.
    assert trial.throughput == pytest.approx(whole.throughput, rel=0.1)


def test_late_requests_that_may_still_be_few_end_nothing(layout: CoreLayout) -> None:
    source = traffic(120, rate=1.0)
    found = planner(layout, source)
    for load in (0.5, 1.0, 1.5, 2.0):
        trial = found.at(1, load)
        if trial.holds:
            assert (trial.ended, trial.requests) == ("", 120)
        else:
            assert trial.bounds["ttft_p95"] is not None
            assert trial.bounds["ttft_p95"] > 1000 or trial.limit.startswith("falls behind")


def test_the_steps_of_a_plan_are_bounded(
    layout: CoreLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five times the traffic takes no more of them."""
    monkeypatch.setattr("penstock_engine.plan.search.MOST_STEPS", 600)
    monkeypatch.setattr("penstock_engine.plan.search.STEPS_OF_A_CORE", 60)
    few, many = (plan(layout, requests, all_requests=False) for requests in (200, 1000))
    assert few.cores is not None
    assert many.cores == pytest.approx(few.cores, abs=1)
    for trial in simulated(many):
        # What is open at the last arrival is answered: a few hundred tokens at most.
        most = max(600, 60 * trial.cores) * (1.0 if trial.load >= 1.0 else CURVE_SHARE)
        assert trial.steps < most + 400 * trial.cores
        assert trial.ended
    assert sum(trial.steps for trial in simulated(many)) < 1.2 * sum(
        trial.steps for trial in simulated(few)
    )


def test_a_plan_says_what_was_left_out(layout: CoreLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_engine.plan.search.MOST_STEPS", 500)
    monkeypatch.setattr("penstock_engine.plan.search.STEPS_OF_A_CORE", 50)
    said = "runs ended at a bound on simulated steps, after"
    assert said in as_text(plan(layout, 400, all_requests=False))
    said = "runs ended when more requests were late than the objective allows"
    assert said in as_text(plan(layout, 400, all_requests=False, rate=40.0))


def test_as_many_requests_as_are_asked_for_are_simulated(layout: CoreLayout) -> None:
    found = plan(layout, 60, all_requests=True)
    held = [trial for trial in simulated(found) if trial.holds]
    assert held
    assert all((trial.requests, trial.ended) == (60, "") for trial in held)
    assert not any("bound on simulated steps" in note for note in found.notes)


def plan(
    layout: CoreLayout, requests: int, *, all_requests: bool, rate: float = 6.0
) -> CapacityPlan:
    terms = PlanTerms(bounds=SLO, most=4, all_requests=all_requests)
    return make_plan(layout, traffic(requests, rate), terms)


def simulated(found: CapacityPlan) -> list[PlanTrial]:
    return [*found.trials, *(trial for trial in found.curve if trial.load != 1.0)]
