"""Traces of agents: their shape, that turns follow one another, and what is found of them."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from penstock.config.settings import CacheSettings, EngineConfig, ModelSettings, SchedulerSettings
from penstock.errors import InvalidRequest
from penstock_planning.simulate.agents import AgentTraffic, agents, parse_agents, seen_before
from penstock_planning.simulate.cost import StepCost
from penstock_planning.simulate.report import SimulationReport, report_of
from penstock_planning.simulate.simulation import Simulation, SimulationOptions
from penstock_planning.simulate.trace import TraceRequest

COST = StepCost(base_ms=5.0, token_ms=0.1, copy_ms=0.2)
SMALL = AgentTraffic(
    sessions=12,
    rate=0.1,
    kinds=2,
    system=200,
    turns=12,
    task=60,
    step=20,
    output=8,
    tool=3.0,
    asks=0.1,
    person=40.0,
    others=4.0,
    other_prompt=200,
    other_output=4,
)


def simulated(
    trace: list[TraceRequest], blocks: int = 400, size: int = 4, **options: Any
) -> SimulationReport:
    settings = EngineConfig(
        model=ModelSettings(max_model_len=4096),
        cache=CacheSettings(num_kv_blocks=blocks, kv_block_size=size),
        scheduler=SchedulerSettings(max_num_seqs=16, max_num_batched_tokens=512),
    )
    simulation = Simulation(settings, SimulationOptions(cost=COST, check_every=500, **options))
    simulation.run(iter(trace))
    return report_of(simulation)


def found(report: SimulationReport) -> float:
    """Share of the agents' prompt tokens."""
    tenant = report.tenants["agents"]
    return tenant.cached_tokens / tenant.prompt_tokens


def test_the_defaults_have_the_shape_that_was_measured() -> None:
    trace = list(agents(AgentTraffic(sessions=60)))
    sessions: dict[str, list[TraceRequest]] = {}
    for request in trace:
        sessions.setdefault(request.session, []).append(request)
    assert statistics.median(map(len, sessions.values())) == pytest.approx(43, rel=0.1)
    prompts = statistics.median(request.num_prompt for request in trace)
    assert prompts == pytest.approx(142_000, rel=0.1)
    outputs = statistics.median(request.output_tokens for request in trace)
    assert outputs == pytest.approx(444, rel=0.1)
    assert 0.955 < seen_before(trace) < 0.98
    assert [each.at for each in trace] == sorted(each.at for each in trace)
    assert trace == list(agents(AgentTraffic(sessions=60)))


def test_what_was_seen_before_is_counted() -> None:
    first = TraceRequest(0.0, 100, 10, prefix_group=1, prefix_tokens=40, session="a")
    second = TraceRequest(0.0, 150, 10, prefix_group=1, prefix_tokens=40, session="a")
    other = TraceRequest(0.0, 50, 10, prefix_group=1, prefix_tokens=40, session="b")
    assert seen_before([first, second, other]) == (110 + 40) / 300
    assert seen_before([TraceRequest(0.0, 50, 1)]) == 0.0


def test_a_turn_comes_a_pause_after_the_answer_before() -> None:
    turns = [TraceRequest(1.0, 8, 2, "agents", session="a", pause=pause) for pause in (0.0, 7.0)]
    report = simulated(turns)
    # Two steps of a chunk and a token for each, of which the second turn finds one block.
    assert report.completed == 2
    assert report.seconds == pytest.approx(1.0 + 7.0 + 4 * 0.00505 + 0.0001 * (8 + 1 + 4 + 1))
    assert report.cached_tokens == 4


@pytest.mark.slow
def test_with_room_for_all_nothing_is_computed_twice() -> None:
    trace = list(agents(SMALL))
    report = simulated(trace, blocks=20_000, size=1)
    # The last token before a turn's new ones is an answer's, which was never an input.
    assert seen_before(trace) - found(report) < 0.01
    assert report.completed == len(trace)


@pytest.mark.slow
def test_what_is_told_of_sessions_is_found_again() -> None:
    trace = list(agents(SMALL))
    shares = {told: found(simulated(trace, told=told)) for told in ("nothing", "sessions", "hints")}
    assert shares["sessions"] > shares["nothing"] + 0.1, shares
    assert shares["hints"] > shares["nothing"] + 0.1, shares


@pytest.mark.slow
def test_a_host_tier_brings_sessions_back() -> None:
    trace = list(agents(SMALL))
    plain, hosted = simulated(trace), simulated(trace, host_blocks=4000, told="hints")
    assert found(hosted) > found(plain)
    assert hosted.swapped_in
    assert simulated(trace, host_blocks=4000, told="hints").digest == hosted.digest


@pytest.mark.parametrize(
    ("text", "said"), [("turns=0", "turns"), ("sesions=3", "fields: sessions"), ("rate=x", "rate")]
)
def test_wrong_fields_are_named(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        parse_agents(text)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_nothing_grows_over_a_million_requests() -> None:
    """Sessions come and go, some of them with more than there is room for."""
    traffic = AgentTraffic(
        sessions=110_000,
        rate=2.0,
        system=32,
        turns=9,
        task=8,
        step=8,
        output=2,
        output_sigma=0.1,
        tool=2.0,
    )
    settings = EngineConfig(
        cache=CacheSettings(num_kv_blocks=400, kv_block_size=4, kv_retention_seconds=5.0),
        scheduler=SchedulerSettings(max_num_seqs=32, max_num_batched_tokens=512),
    )
    cost = StepCost(base_ms=20.0, token_ms=0.1)
    options = SimulationOptions(cost=cost, told="hints", host_blocks=300, check_every=20_000)
    simulation = Simulation(settings, options)
    simulation.run(agents(traffic))
    assert simulation.metrics.submitted > 900_000
    state = simulation.replicas[0].core.state
    sessions = state.kv_sessions
    state.clock.now += 1e6
    sessions.due(state.clock.now)
    sessions.expire(state.clock.now)
    assert sessions.num_live == 0
    assert not sessions._heap
    assert not sessions._ended
    assert sessions._expected.num_keys == 0
    assert state.scheduling.cache is not None
    assert state.scheduling.cache.retention.num_blocks == 0
