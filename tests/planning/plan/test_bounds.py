"""How much is simulated for a plan, and that what is left out would have changed nothing."""

from __future__ import annotations

import msgspec
import pytest

from penstock.config.settings import CacheSettings, EngineConfig, SchedulerSettings
from penstock.errors import InvalidRequest
from penstock_planning.plan.as_text import as_text
from penstock_planning.plan.objective import parse_slo
from penstock_planning.plan.plan import CapacityPlan, PlanTerms, make_plan
from penstock_planning.plan.search import CURVE_SHARE, LONE_REQUESTS, Planner, enough
from penstock_planning.plan.traffic import PlanTraffic
from penstock_planning.plan.trial import CoreLayout, PlanTrial, run_trial
from penstock_planning.plan.work import TableWork, WorkSpent
from penstock_planning.simulate.commands import Synthetic
from penstock_planning.simulate.cost import StepCost
from penstock_planning.simulate.simulation import LOOK
from penstock_planning.simulate.trace import TraceRequest

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
    monkeypatch.setattr("penstock_planning.plan.search.MOST_WORK", 600)
    monkeypatch.setattr("penstock_planning.plan.search.WORK_OF_A_CORE", 60)
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
    monkeypatch.setattr("penstock_planning.plan.search.MOST_WORK", 500)
    monkeypatch.setattr("penstock_planning.plan.search.WORK_OF_A_CORE", 50)
    said = "runs ended at a bound on simulated work, after"
    assert said in as_text(plan(layout, 400, all_requests=False))
    said = "runs ended when more requests were late than the objective allows"
    assert said in as_text(plan(layout, 400, all_requests=False, rate=40.0))


def test_a_percentile_is_of_more_than_a_few_requests(layout: CoreLayout) -> None:
    """Otherwise p99 is the longest wait that happened to come."""
    bounds = parse_slo("ttft_p99=1000s")
    planner = Planner(layout, traffic(1000, 6.0), bounds, all_requests=False)
    assert planner.at(1).requests >= 300
    assert planner.alone().requests == LONE_REQUESTS


def test_what_one_core_holds_is_never_called_hopeless(layout: CoreLayout) -> None:
    """Though it came out wrong of the few requests that were tried alone."""
    found = plan(layout, 60, all_requests=True, rate=1.0)
    assert found.cores == 1
    broken = msgspec.structs.replace(found.lone, holds=False, limit="ttft_p95")
    terms = PlanTerms(bounds=SLO, most=4)
    again = make_plan(layout, traffic(60, 1.0), terms, lone=broken)
    assert (again.cores, again.knee) == (found.cores, found.knee)
    assert not any("No number of engine cores" in note for note in again.notes)


def test_as_many_requests_as_are_asked_for_are_simulated(layout: CoreLayout) -> None:
    found = plan(layout, 60, all_requests=True)
    held = [trial for trial in simulated(found) if trial.holds]
    assert held
    assert all((trial.requests, trial.ended) == (60, "") for trial in held)
    assert not any("bound on simulated work" in note for note in found.notes)


def plan(
    layout: CoreLayout, requests: int, *, all_requests: bool, rate: float = 6.0
) -> CapacityPlan:
    terms = PlanTerms(bounds=SLO, most=4, all_requests=all_requests)
    return make_plan(layout, traffic(requests, rate), terms)


def simulated(found: CapacityPlan) -> list[PlanTrial]:
    return [*found.trials, *(trial for trial in found.curve if trial.load != 1.0)]


ONE_AT_A_TIME = EngineConfig(
    cache=CacheSettings(num_kv_blocks=4096),
    scheduler=SchedulerSettings(max_num_seqs=1, max_steps_in_flight=1),
)


@pytest.mark.parametrize(("rate", "behind"), [(9.3, False), (13.0, True)])
def test_a_core_falls_behind_what_is_more_than_it_can_do(rate: float, behind: bool) -> None:
    """One at a time, services of 0.1 s can be had ten times a second; that waits are long at
    almost as many, and the last ones end late, is no sign of more."""
    cost = StepCost(base_ms=100.0, token_ms=0.0, sequence_ms=0.0)
    made = Synthetic(
        rate=rate, requests=400, prompt=20, output=1, prompt_sigma=0.0, output_sigma=0.0
    )
    source = PlanTraffic(made, 400)
    loose = parse_slo("ttft_p95=1000s")
    trial = Planner(CoreLayout(config=ONE_AT_A_TIME, cost=cost), source, loose).at(1)
    assert trial.limit.startswith("falls behind") is behind
    assert trial.holds is not behind


def test_one_long_answer_at_the_end_is_not_falling_behind() -> None:
    """The core is busy as long as anything is under way, and the last answer takes as long as all
    the others together."""
    cost = StepCost(base_ms=10.0, token_ms=0.0, sequence_ms=0.0)
    layout = CoreLayout(config=EngineConfig(cache=CacheSettings(num_kv_blocks=4096)), cost=cost)
    requests = [TraceRequest(0.05 * number, 8, 6) for number in range(199)]
    requests.append(TraceRequest(9.95, 8, 1000))
    trial = run_trial(layout, 1, requests, parse_slo("ttft_p95=1s"), rate=20.0)
    assert trial.busy > 0.9
    assert trial.throughput < 0.95 * trial.rate
    assert trial.holds


def test_a_table_that_takes_too_much_work_is_refused(
    layout: CoreLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lone request of the shortest answers already takes more steps than are allowed."""
    monkeypatch.setattr("penstock_planning.plan.work.TABLE_WORK", 100)
    with pytest.raises(
        InvalidRequest, match=r"worth of 100 simulated steps.*comes first: fewer --output-tokens"
    ):
        plan(layout, 60, all_requests=False)


@pytest.mark.parametrize(
    ("best", "made", "most"),
    [
        ("--output-tokens", {"prompt": 8, "output": 100}, 4),
        ("--input-tokens", {"prompt": 8000, "max_prompt": 8000, "output": 1}, 4),
        ("--requests", {"prompt": 60, "output": 12, "requests": 3000}, 4),
        ("--max-cores", {"prompt": 60, "output": 2, "rate": 3e5}, 32),
    ],
)
def test_what_is_named_first_for_too_much_work_spares_most(
    monkeypatch: pytest.MonkeyPatch, best: str, made: dict[str, float], most: int
) -> None:
    """A tenth of it is tried for each flag, as far as it goes: none leaves less to do."""
    limit = 10_000 if best == "--requests" else 3_000
    monkeypatch.setattr("penstock_planning.plan.work.ASKED_WORK", limit)
    asked = {"rate": 6.0, "requests": 60, "prompt_sigma": 0.0, "output_sigma": 0.0} | made
    cache = CacheSettings(num_kv_blocks=40_000 if best == "--max-cores" else 1024)
    layout = CoreLayout(config=EngineConfig(cache=cache, scheduler=SchedulerSettings()), cost=SLOW)

    def source(changed: dict[str, float]) -> PlanTraffic:
        return PlanTraffic(msgspec.convert(asked | changed, Synthetic), 200_000)

    with pytest.raises(InvalidRequest) as refused:
        make_plan(layout, source({}), PlanTerms(bounds=SLO, most=most))
    assert f"comes first: fewer {best} (" in str(refused.value)
    tried = {
        "--output-tokens": ({"output": max(1, asked["output"] // 10)}, most),
        "--input-tokens": ({"prompt": max(1, asked["prompt"] // 10)}, most),
        "--requests": ({"requests": max(enough(SLO), asked["requests"] // 10)}, most),
        "--max-cores": ({}, max(1, most // 10)),
    }
    work = {flag: spent(layout, source(changed), cores) for flag, (changed, cores) in tried.items()}
    assert min(work, key=lambda flag: work[flag]) == best, work


def spent(layout: CoreLayout, source: PlanTraffic, most: int) -> float:
    """What the search for a number of engine cores takes, if nothing ends it."""
    work = TableWork(1e9)
    found = Planner(layout, source, SLO, work=work)
    if found.can_hold():
        found.fewest(most)
    return work.most - work.left


def test_lengths_of_a_trace_are_no_flags(
    layout: CoreLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_planning.plan.work.ASKED_WORK", 3_000)
    source = PlanTraffic("synthetic:rate=6,requests=400,prompt=60,output=12", 400)
    with pytest.raises(InvalidRequest) as refused:
        make_plan(layout, source, PlanTerms(bounds=SLO, cores=2))
    assert "comes first: fewer --requests (" in str(refused.value)
    assert "-tokens" not in str(refused.value)
    assert "--max-cores" not in str(refused.value)


def test_a_run_takes_no_more_than_its_table_has(layout: CoreLayout) -> None:
    """Even while it only answers what has come."""
    table = TableWork(2_000)
    with pytest.raises(WorkSpent):
        run_trial(
            layout, 1, [TraceRequest(0.0, 8, 5_000)], SLO, rate=1.0, table=table, most_work=1_000
        )
    assert -LOOK - 2 < table.left <= 0


def test_loads_and_changes_without_work_left_are_named(
    layout: CoreLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = TableWork(1e9)
    planner = Planner(layout, traffic(60, 1.0), SLO, work=counted)
    planner.alone()
    assert planner.fewest(4)
    spent = counted.most - counted.left
    monkeypatch.setattr("penstock_planning.plan.work.ASKED_WORK", spent + 200)
    terms = PlanTerms(bounds=SLO, most=4, changes=("reuse=0", "max_num_seqs=8"))
    found = make_plan(layout, traffic(60, 1.0), terms)
    assert found.cores == 1
    assert [trial.load for trial in found.curve] == [1.0]
    text = as_text(found)
    assert "The curve lacks loads" in text
    assert "all the work that they may take: max_num_seqs=8" in text
    assert [change.change for change in found.what_if] == ["reuse=0"]


def test_more_kv_blocks_than_memory_has_are_refused(layout: CoreLayout) -> None:
    with pytest.raises(InvalidRequest, match="50,000,000 blocks together are allowed"):
        TableWork(1e9).make(100, 1_000_000)
