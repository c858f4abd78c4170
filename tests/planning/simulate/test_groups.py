"""Simulations of models with several KV groups."""

from __future__ import annotations

import pytest

from penstock.config.settings import CacheSettings, EngineConfig
from penstock.errors import InvalidRequest
from penstock.model.kv_layout import FULL, KVGroup
from penstock_planning.simulate.commands import Synthetic, synthetic
from penstock_planning.simulate.groups import check_groups, parse_groups
from penstock_planning.simulate.report import report_of
from penstock_planning.simulate.simulation import Simulation, SimulationOptions


def test_what_a_flag_says() -> None:
    assert parse_groups("full, window=9,chunk=32,states=64:3") == (
        FULL,
        KVGroup(window=9),
        KVGroup(chunk=32),
        KVGroup(every=64, blocks=3),
    )


@pytest.mark.parametrize("text", ["", "full=1", "window", "window=x", "states=16", "states=1:-2"])
def test_what_is_unknown_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="allowed: full, window=TOKENS"):
        parse_groups(text)


@pytest.mark.parametrize("text", ["states=32:2", "full,states=40:2", "full,window=0"])
def test_what_can_not_be_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        check_groups(parse_groups(text), 16)


def test_a_run_with_states_keeps_its_books_through_preemptions_and_deaths() -> None:
    config = EngineConfig(cache=CacheSettings(num_kv_blocks=200))
    options = SimulationOptions(
        kv_groups=parse_groups("full,window=40,states=64:5"), check_every=5, deaths_per_hour=2000.0
    )
    simulation = Simulation(config, options)
    simulation.run(synthetic(Synthetic(requests=150, rate=20.0, prompt=120, shared=0.5, prefix=90)))
    report = report_of(simulation)
    assert report.completed == 150
    scheduling = simulation.replicas[0].core.state.scheduling
    assert scheduling.kv_groups.states is not None
    assert scheduling.num_preemptions > 5
    assert simulation.deaths > 0
