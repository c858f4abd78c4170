"""What is simulated: traffic, what happens, and in which windows of time it is looked at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from loadtest.cells.recorded import as_flag, cost_of, recorded
from penstock.config.settings import CacheSettings, EngineConfig, SchedulerSettings
from penstock_planning.cells.balancers import BALANCERS
from penstock_planning.cells.happenings import parse_happening
from penstock_planning.cells.report import cells_report
from penstock_planning.cells.simulation import CellsOptions, CellsSimulation, windows_of
from penstock_planning.cells.traffic import mixed, parse_mixed
from penstock_planning.simulate.cost import parse

BLOCKS = 4096
EVERY = 15.0


@dataclass(frozen=True)
class Scenario:
    """rate: sessions that begin in a second, for each engine core.  traffic, happens, windows: as
    the command's."""

    rate: float
    traffic: str
    windows: str
    happens: tuple[str, ...] = ()
    policy: str = "fair"

    def trace(self, engines: int, seed: int = 0) -> str:
        """For so many engine cores."""
        return f"mixed:rate={self.rate * engines:.4g},{self.traffic},seed={seed}"

    def command(self, cells: int, replicas: int, across: str, *flags: str) -> str:
        """What a shell would be told."""
        happens = [f"--happens {each}" for each in self.happens]
        words = [
            f"penstock simulate {self.trace(cells * replicas)}",
            f"--cells {cells} --replicas {replicas} --across {across} --policy {self.policy}",
            f"--blocks {BLOCKS} --step-cost {as_flag(cost_of(recorded()))}",
            f"--windows {self.windows}",
            *happens,
            *flags,
        ]
        return " ".join(words)


DAY = Scenario(
    rate=0.07,
    traffic="seconds=435,tenants=40,grows=10,grown=6,grows_at=345,grows_for=90",
    windows="warm-up:0,calm:60,upgrade:150,lost:270,after:330,tenfold:345",
    happens=("upgrade:at=150,away=15,abreast=4", "lost:at=270,away=60,cell=3"),
)
NAMED = replace(DAY, traffic=DAY.traffic + ",named=1")
SCALED = Scenario(
    rate=0.022,
    traffic="seconds=360,tenants=40,swells=3,swells_at=90",
    windows="warm-up:0,before:60,swell:90,after:240",
)
TWIN = Scenario(rate=0.1, traffic="seconds=120,tenants=20", windows="all:0")


def scaling(lag: float) -> tuple[str, ...]:
    """Cells of 16 that begin with 5 engine cores, and get one for 4 open requests."""
    return (f"scaling:start=5,each=4,polling=15,lag={lag:g}",)


ACROSS = tuple(BALANCERS)
LAG = 60.0
SEEDS = (0, 1)


@dataclass(frozen=True)
class Run:
    """A simulation of a scenario."""

    title: str
    scenario: Scenario
    cells: int
    replicas: int
    across: str
    steps_at_once: bool = True
    happens: tuple[str, ...] | None = None  # in place of the scenario's
    seed: int = 0

    def simulate(self) -> dict[str, Any]:
        """Runs it; returns the report, ready for JSON."""
        scenario = self.scenario
        traffic = parse_mixed(
            scenario.trace(self.cells * self.replicas, self.seed).removeprefix("mixed:")
        )
        config = EngineConfig(
            cache=CacheSettings(num_kv_blocks=BLOCKS),
            scheduler=SchedulerSettings(scheduling_policy=scenario.policy),
        )
        happens = scenario.happens if self.happens is None else self.happens
        options = CellsOptions(
            cost=parse(as_flag(cost_of(recorded()))),
            cells=self.cells,
            replicas=self.replicas,
            across=self.across,
            steps_at_once=self.steps_at_once,
            happens=tuple(map(parse_happening, happens)),
            windows=tuple(windows_of(scenario.windows)),
            every=EVERY,
        )
        simulation = CellsSimulation(config, options)
        simulation.run(mixed(traffic))
        report: dict[str, Any] = msgspec.to_builtins(cells_report(simulation, traffic))
        return {"title": self.title, **report}


def runs_of(cells: int, replicas: int) -> dict[str, list[Run]]:
    """All that is simulated, by what it shows."""
    small = max(2, cells // 2), max(2, replicas // 2)
    return {
        "twins": [
            Run(
                f"{policy}, traffic {seed}",
                replace(TWIN, policy=policy),
                4,
                4,
                "hashed",
                once,
                (),
                seed,
            )
            for policy in ("fcfs", "fair")
            for seed in SEEDS
            for once in (False, True)
        ],
        "scaled": [
            Run(f"{across}, {lag:g} s", SCALED, *small, across, happens=scaling(lag))
            for across, lag in (
                ("hashed", 0.0),
                ("hashed", LAG),
                ("hashed-coarsely", LAG),
                ("one-router", LAG),
                ("round-robin", LAG),
            )
        ],
        "day": [Run(across, DAY, cells, replicas, across) for across in ACROSS],
        "named": [Run(across, NAMED, cells, replicas, across) for across in ACROSS[:3]],
    }
