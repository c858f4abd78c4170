"""Recordings of a core that drives several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.settings import RecordSettings
from penstock_engine.record.framing import log_files
from penstock_engine.record.recorder import CoreRecorder, recording
from penstock_engine.record.replay import replay
from penstock_planning.simulate.fit import measured_steps
from tests.engine.rank_walker import SIZES, RankWalker, make_rank_harness
from tests.engine.rank_workers import RankHarness
from tests.engine.walked_harness import Seeded


@pytest.mark.parametrize("size", SIZES[1:])
def test_a_replay_decides_alike(tmp_path: Path, size: tuple[int, int]) -> None:
    choose = Seeded(7)
    walker = RankWalker(make_rank_harness(choose, size), choose)
    with recording(walker.h.core, RecordSettings(record_dir=str(tmp_path))) as core:
        walker.h.core = core
        walker.connect()
        for _ in range(900):
            walker.walk()
    (path,) = log_files([str(tmp_path)])
    done = replay(path)
    assert done.difference is None
    assert done.torn is None
    assert done.steps > 200


def test_a_step_is_measured_once_by_its_slowest_rank(tmp_path: Path) -> None:
    h = RankHarness(2, 1)
    h.connect()
    h.start_worker()
    recorder = CoreRecorder(h.core, RecordSettings(record_dir=str(tmp_path)))
    h.core = recorder  # type: ignore[assignment]
    h.settle()
    h.submit(h.fronts[0], [3] * 5, max_tokens=6, ignore_eos=True)
    while h.plans:
        h.rank_step(0, compute_seconds=0.25)
        h.plans.popleft()
        h.rank_step(1, compute_seconds=0.5)
    recorder.close()
    found = measured_steps(log_files([str(tmp_path)]))
    assert [(step.row[1], step.compute) for step in found] == [(5.0, 500.0)] + 5 * [(1.0, 500.0)]
