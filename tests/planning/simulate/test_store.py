"""What a simulated worker keeps on disk: found after a death, read where that pays, and bounded."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest

from penstock.config.settings import CacheSettings, EngineConfig
from penstock.errors import InvalidRequest
from penstock.protocol.from_worker import FetchedKV, FoundKV
from penstock.protocol.to_worker import FetchKV, LookUpKV, Save
from penstock_planning.simulate.agents import AgentTraffic, agents
from penstock_planning.simulate.report import SimulationReport, report_of
from penstock_planning.simulate.simulation import Simulation, SimulationOptions
from penstock_planning.simulate.store import SimulatedStore

TRAFFIC = AgentTraffic(sessions=8, turns=5, system=600, task=200, step=200, output=40, rate=2.0)
"""More than the pool holds: what a session has said is evicted before it comes back."""


def simulated(**options: object) -> SimulationReport:
    config = EngineConfig(cache=CacheSettings(num_kv_blocks=160))
    options = {"check_every": 50, "told": "nothing", **options}
    simulation = Simulation(config, SimulationOptions(**options))  # type: ignore[arg-type]
    simulation.run(agents(TRAFFIC))
    return report_of(simulation)


@pytest.mark.slow
def test_what_was_evicted_is_read_and_not_computed() -> None:
    without, kept = simulated(), simulated(disk_blocks=4000)
    assert without.disk_blocks_read == 0
    assert kept.disk_blocks_read > 100
    assert kept.completed == without.completed
    assert kept.cached_tokens > 1.1 * without.cached_tokens
    assert kept.ttft.mean is not None
    assert without.ttft.mean is not None
    assert kept.ttft.mean < without.ttft.mean
    assert simulated(disk_blocks=4000).digest == kept.digest


def test_nothing_is_read_that_is_computed_sooner() -> None:
    slow = simulated(disk_blocks=4000, disk_block=1.0)
    assert slow.disk_blocks_read < 0.1 * simulated(disk_blocks=4000).disk_blocks_read


@pytest.mark.slow
def test_it_outlives_workers_that_die_while_they_read() -> None:
    died = simulated(disk_blocks=4000, deaths_per_hour=400.0, disk_block=0.001)
    assert died.worker_deaths > 3
    assert died.completed == simulated().completed
    assert died.disk_blocks_read > 100


def test_it_keeps_what_was_used_last_and_answers_in_turn() -> None:
    store, model = SimulatedStore(8, 0.5), OrderedDict[bytes, None]()
    chance, asked, at = random.Random(4), 0, 0.0
    for _ in range(300):
        keys = [bytes([chance.randrange(12)]) for _ in range(3)]
        if chance.random() < 0.5:
            store.save([Save(key, 0) for key in keys])
            for key in keys:
                model[key] = None
                model.move_to_end(key)
                while len(model) > 8:
                    model.popitem(last=False)
            continue
        there = next((n for n, key in enumerate(keys) if key not in model), 3)
        for key in keys[:there]:
            model.move_to_end(key)
        asked += 1
        reads = chance.random() < 0.5
        store.ask(FetchKV(asked, keys, [0, 1, 2]) if reads else LookUpKV(asked, keys), at)
        at += 0.5 * there * reads
        assert store.begun() == [at]
        assert store.due.popleft() == (
            FetchedKV(asked, there) if reads else FoundKV(asked, there, 0.5)
        )
        assert len(store) == len(model) <= 8
    assert asked > 100


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"disk_blocks": -1}, "0 blocks on disk or more"),
        ({"disk_block": float("nan")}, "a block is read in 0 to 100 seconds"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        simulated(**options)
