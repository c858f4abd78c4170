"""What `penstock replay`, `simulate` and `fit-cost` do; each returns what is to be shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.config.settings import EngineConfig
from penstock.errors import InvalidRequest
from penstock_engine.record.framing import log_files
from penstock_engine.record.replay import Replayed, replay
from penstock_engine.simulate.agents import agents, parse_agents
from penstock_engine.simulate.chart import draw
from penstock_engine.simulate.fit import fit_cost, measured_steps
from penstock_engine.simulate.metrics import Slo
from penstock_engine.simulate.recorded import Traffic
from penstock_engine.simulate.report import as_text, report_of
from penstock_engine.simulate.simulation import Progress, Simulation, SimulationOptions
from penstock_engine.simulate.synthetic import parse, synthetic
from penstock_engine.simulate.trace import read_trace, write_trace

SYNTHETIC, AGENTS = "synthetic:", "agents:"
"""A trace of such a prefix is made, not read."""


def replay_all(names: list[str], show: Callable[[str], None]) -> bool:
    """Whether every decision was the recorded one; `show` gets lines as they are known.

    Raises InvalidRequest where a recording can't be read.
    """
    alike = True
    for path in log_files(names):
        try:
            done = replay(path)
        except OSError as error:
            raise InvalidRequest(f"{path}: {error.strerror}") from None
        alike = alike and done.difference is None
        show(_replayed(done))
    return alike


def _replayed(done: Replayed) -> str:
    words = f"{done.path}: {done.steps:,} steps, {done.records:,} records"
    notes = [] if done.torn is None else [f"the recording is truncated: {done.torn}"]
    if not done.same_program:
        notes.append(f"it was made by another version ({done.header.version})")
    difference = done.difference
    if difference is None:
        return "; ".join([f"{words}; all decisions are equal", *notes])
    return "\n".join(
        [
            "; ".join([f"{words}; then the decisions differ", *notes]),
            f"step {difference.step:,} of the file (record {difference.record:,}, engine clock "
            f"{difference.now:.6f} s): {', '.join(difference.parts)} differ",
            f"recorded:\n{difference.recorded}",
            f"replayed:\n{difference.replayed}",
        ]
    )


def run_simulation(
    trace: str,
    config: EngineConfig,
    options: SimulationOptions,
    *,
    output: Path | None = None,
    chart: Path | None = None,
    progress: Progress | None = None,
) -> str:
    """Simulates a trace file, `synthetic:FIELD=VALUE,…`, or `agents:…`. Raises InvalidRequest."""
    if trace.startswith(SYNTHETIC):
        requests = synthetic(parse(trace.removeprefix(SYNTHETIC)))
    elif trace.startswith(AGENTS):
        requests = agents(parse_agents(trace.removeprefix(AGENTS)))
    else:
        requests = read_trace(trace)
    simulation = Simulation(config, options)
    simulation.run(requests, progress)
    report = report_of(simulation)
    if output is not None:
        output.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    if chart is not None:
        draw(simulation.metrics, chart)
    return as_text(report)


def fit(names: list[str], output: Path | None, trace: Path | None) -> str:
    """Fits the step's cost to recordings. Raises InvalidRequest."""
    paths = log_files(names)
    try:
        fitted = fit_cost(measured_steps(paths))
        if trace is not None:
            traffic = Traffic(Slo(1.0, 1.0))
            for path in paths:
                traffic.read(path)
            write_trace(trace, traffic.trace)
    except OSError as error:
        raise InvalidRequest(f"{error.filename}: {error.strerror}") from None
    text = msgspec.json.format(msgspec.json.encode(fitted)).decode()
    if output is not None:
        output.write_text(text + "\n", encoding="utf-8")
    return text
