"""Whatever happens to engine cores, every request ends with all of its tokens."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.config.settings import CacheSettings, EngineConfig, SchedulerSettings
from penstock.errors import InvalidRequest
from penstock_planning.cells.happenings import parse_happening
from penstock_planning.cells.report import cells_report
from penstock_planning.cells.simulation import CellsOptions, CellsSimulation, windows_of
from penstock_planning.cells.traffic import MixedTraffic, mixed
from penstock_planning.simulate.cost import StepCost

COST = StepCost(base_ms=17.0, token_ms=0.0, hidden_ms=1.9, sequence_ms=1.1, read_ms=0.0007)
TRAFFIC = MixedTraffic(seconds=60.0, rate=0.7, tenants=8)
ACROSS = ("hashed", "one-router", "round-robin")


def simulated(*happens: str, traffic: MixedTraffic = TRAFFIC, **options: Any) -> CellsSimulation:
    config = EngineConfig(
        cache=CacheSettings(num_kv_blocks=3000),
        scheduler=SchedulerSettings(scheduling_policy="fair"),
    )
    terms = {"cost": COST, "cells": 3, "replicas": 2, **options}
    happening = tuple(map(parse_happening, happens))
    simulation = CellsSimulation(config, CellsOptions(happens=happening, **terms))
    simulation.run(mixed(traffic))
    return simulation


@pytest.mark.parametrize("across", ACROSS)
@pytest.mark.parametrize(
    "happens", ["upgrade:at=15,away=4", "lost:at=20,away=15,cell=1", "scaling:start=1,each=2,lag=9"]
)
def test_nobody_is_lost(across: str, happens: str) -> None:
    simulation = simulated(happens, across=across)
    assert simulation.ended == len(list(mixed(TRAFFIC)))
    window = simulation.windows[0]
    assert window.refused == 0
    assert window.first_token.count == simulation.ended
    assert (simulation.lost > 0) == (not happens.startswith("scaling"))
    assert all(cell.load == 0 for cell in simulation.fleet.cells)
    for seat in simulation.fleet.seats:
        assert seat.engine is not None or happens.startswith("scaling")
        assert seat.engine is None or not seat.engine.open
    assert simulated(happens, across=across).digest() == simulation.digest()


@pytest.mark.slow
@pytest.mark.parametrize("happens", ["upgrade:at=15,away=4", "lost:at=20,away=15,cell=1"])
def test_the_production_engine_core_goes_on_with_what_another_had(happens: str) -> None:
    modelled, production = simulated(happens), simulated(happens, steps_at_once=False)
    assert production.ended == modelled.ended
    assert production.windows[0].refused == 0
    assert production.lost == pytest.approx(modelled.lost, rel=0.5)
    assert 0 < production.windows[0].moved <= production.lost


def test_a_lost_cell_gets_nothing_until_it_is_back() -> None:
    simulation = simulated(
        "lost:at=20,away=20,cell=1", windows=tuple(windows_of("a:0,b:20.001,c:40.001"))
    )
    before, meanwhile, after = simulation.windows
    assert meanwhile.by_cell[1] == 0 < before.by_cell[1]
    assert after.by_cell[1] > 0
    assert meanwhile.by_cell[0] > 0 < meanwhile.by_cell[2]


def test_an_upgrade_replaces_each_once_and_few_at_a_time() -> None:
    there: list[tuple[float, int]] = []
    watched = CellsSimulation(
        EngineConfig(cache=CacheSettings(num_kv_blocks=3000)),
        CellsOptions(cost=COST, cells=2, replicas=4),
    )
    names: list[str] = []

    def count() -> int:
        return sum(seat.engine is not None for seat in watched.fleet.seats)

    class Stage:
        fleet = watched.fleet

        def later(self, at: float, act: Any) -> None:
            watched.later(at, act)

        def stop(self, seat: Any, now: float, after: float) -> None:
            names.append(seat.name)
            watched.stop(seat, now, after)
            there.append((now, count()))

        def start(self, seat: Any) -> None:
            watched.start(seat)

    parse_happening("upgrade:at=10,away=5").begin(Stage())
    watched.run(mixed(TRAFFIC))
    assert sorted(names) == sorted(seat.name for seat in watched.fleet.seats)
    assert min(present for _, present in there) == 6, "one of each cell is away"
    assert [at for at, _ in there] == [10, 10, 15, 15, 20, 20, 25, 25]


def scaled(lag: float) -> tuple[CellsSimulation, dict[int, int]]:
    """How many engine cores are there, by the second."""
    simulation = CellsSimulation(
        EngineConfig(cache=CacheSettings(num_kv_blocks=3000)),
        CellsOptions(
            cost=COST,
            cells=1,
            replicas=16,
            happens=(parse_happening(f"scaling:start=1,each=1,polling=15,lag={lag}"),),
        ),
    )
    there: dict[int, int] = {}

    def look(now: float) -> None:
        there[int(now)] = sum(seat.engine is not None for seat in simulation.fleet.seats)

    for second in range(1, 200):
        simulation.later(second + 0.5, look)
    simulation.run(mixed(MixedTraffic(seconds=150.0, rate=2.0, tenants=8)))
    return simulation, there


def test_scaling_waits_for_its_lag_and_at_most_doubles_in_a_minute() -> None:
    (late, lagging), (soon, prompt) = scaled(60), scaled(0)
    assert [prompt[second] for second in (14, 15, 59, 60, 119, 120, 180)] == [1, 2, 2, 4, 4, 8, 16]
    assert all(lagging[second + 60] == prompt[second] for second in (14, 15, 59, 60, 119))
    slow, quick = cells_report(late).windows[0], cells_report(soon).windows[0]
    assert quick.first_token.p95 is not None
    assert slow.first_token.p95 is not None
    assert slow.first_token.p95 > 1.5 * quick.first_token.p95


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flood:at=1", "allowed: upgrade, lost, scaling"),
        ("lost:when=1", "fields: at, away"),
        ("upgrade:away=1", "missing required field `at`"),
    ],
)
def test_what_can_not_happen_is_told(text: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        parse_happening(text)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no cell 7"):
        simulated("lost:at=1,cell=7")
    with pytest.raises(InvalidRequest, match="16,384"):
        simulated(cells=1000, replicas=1000)
    with pytest.raises(InvalidRequest, match="the first one at 0"):
        simulated(windows=(("late", 5.0),))
    with pytest.raises(InvalidRequest, match="NAME:SECONDS"):
        windows_of("calm:soon")
