"""The comparison of simulated with real runs: one small run of the real engine, and its words."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from loadtest import simulator_error
from loadtest.report.readme import README, section


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_small_run_is_recorded_replayed_and_simulated(tmp_path: Path) -> None:
    try:
        importlib.import_module("penstock_kernels.cpu.library").load()
    except ImportError as error:
        pytest.skip(str(error))
    arguments = ["--requests", "10", "--rates", "5", "--answer", "12", "--output", str(tmp_path)]
    assert simulator_error.COMMAND.main(arguments) == 0, "a real recording didn't replay alike"
    document = json.loads((tmp_path / "simulator_error.json").read_text())
    (cell,) = document["cells"]
    assert document["fit"]["steps"] > 20
    assert document["fit"]["cost"]["base_ms"] >= 0
    for figures in (cell["client"], cell["engine"], cell["simulated"]):
        assert figures["ttft"]["count"] == figures["e2e"]["count"] == 10
    # The front end is told after the engine knew.
    assert cell["client"]["e2e"]["mean"] > 0.9 * cell["engine"]["e2e"]["mean"]
    assert cell["client"]["itl"]["count"] == cell["simulated"]["itl"]["count"]


def test_the_readme_has_the_markers() -> None:
    assert section(README, "simulator-error")
