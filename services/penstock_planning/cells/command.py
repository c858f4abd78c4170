"""What `penstock simulate --cells` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock.config.settings import EngineConfig
from penstock_planning.cells.happenings import parse_happening
from penstock_planning.cells.report import cells_report, cells_text
from penstock_planning.cells.simulation import CellsOptions, CellsSimulation, windows_of
from penstock_planning.cells.traffic import parse_mixed
from penstock_planning.simulate.commands import MIXED, requests_of
from penstock_planning.simulate.cost import StepCost


def run_cells(
    trace: str,
    config: EngineConfig,
    cost: StepCost,
    *,
    cells: int,
    replicas: int,
    across: str,
    steps_at_once: bool,
    happens: Sequence[str],
    windows: str,
    output: Path | None,
) -> str:
    """Simulates a trace, and returns the report. Raises InvalidRequest."""
    options = CellsOptions(
        cost=cost,
        cells=cells,
        replicas=replicas,
        across=across,
        steps_at_once=steps_at_once,
        happens=tuple(map(parse_happening, happens)),
        windows=tuple(windows_of(windows)),
    )
    simulation = CellsSimulation(config, options)
    simulation.run(requests_of(trace))
    mixed = parse_mixed(trace.removeprefix(MIXED)) if trace.startswith(MIXED) else None
    report = cells_report(simulation, mixed)
    if output is not None:
        output.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    return cells_text(report)
