"""How far `penstock simulate` is from a real run on this machine.

    python -m loadtest.simulator_error                    # some two minutes
    python -m loadtest.simulator_error --requests 60 --rates 2 --output /tmp/error

Two recorded runs of a real engine for each rate, on different traces: the step's cost is fitted to
the first ones together, and the second ones are simulated with it.  Latencies of the real runs are
told by the front end that asked (`client`) and by the engine's own clock (`engine`), which is the
one that the simulator has.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from loadtest.report.facts import machine_line
from loadtest.report.files import Report, parser
from penstock import AsyncLLM, SamplingParams
from penstock.bench.load.report import markdown_table
from penstock.config.settings import EngineConfig
from penstock_engine.record.framing import log_files
from penstock_engine.record.replay import RecordingFile, replay
from penstock_engine.simulate.cost import FittedCost
from penstock_engine.simulate.fit import fit_cost, measured_steps
from penstock_engine.simulate.histogram import LatencyHistogram
from penstock_engine.simulate.metrics import Slo
from penstock_engine.simulate.recorded import Traffic
from penstock_engine.simulate.report import Latency, latency, report_of
from penstock_engine.simulate.simulation import Simulation, SimulationOptions
from penstock_engine.simulate.synthetic import Synthetic, synthetic
from penstock_engine.simulate.trace import TraceRequest

PROGRAM = "loadtest/simulator_error.py"
BLOCKS = 4096
VOCAB = (1000, 40_000)
"""Token ids of prompts: ordinary ones of the default model."""

SLO = Slo(1.0, 0.1)


class Figures(msgspec.Struct):
    """Milliseconds, and tokens per second from the first arrival to the last end."""

    tokens_per_second: float
    ttft: Latency
    itl: Latency
    e2e: Latency


class Cell(msgspec.Struct):
    """One rate, requests per second."""

    rate: float
    requests: int
    client: Figures
    engine: Figures
    simulated: Figures


def main(arguments: list[str] | None = None) -> int:
    """0, or 1 where a recording didn't replay to the same decisions."""
    options = build_parser().parse_args(arguments)
    report = Report("simulator_error", PROGRAM, options, arguments)
    with tempfile.TemporaryDirectory(prefix="penstock-record-") as folder:
        cells, fitted, alike = measure(Path(folder), options)
    report.finish(
        {"fit": msgspec.to_builtins(fitted), "cells": msgspec.to_builtins(cells)},
        lambda facts: f"{machine_line(facts)}\n\n{words(fitted, cells)}\n",
        section="simulator-error",
    )
    return 0 if alike else 1


def build_parser() -> Any:
    made = parser("-m loadtest.simulator_error", __doc__.splitlines()[0], section=True)
    add = made.add_argument
    add("--model", default=None, help="default: the engine's own")
    add("--rates", type=float, nargs="+", default=[1.5, 3.0, 4.5], help="requests per second")
    add("--requests", type=int, default=100, help="of each run")
    add("--prompt", type=int, default=96, help="median tokens of a prompt")
    add("--answer", type=int, default=48, help="median tokens of an answer")
    return made


def measure(folder: Path, options: argparse.Namespace) -> tuple[list[Cell], FittedCost, bool]:
    """All runs; whether each recording replays alike."""
    runs: list[tuple[float, Path, list[TraceRequest], Figures]] = []
    for rate in options.rates:
        for seed in (1, 2):
            trace = make_trace(options, rate, seed)
            place = folder / f"{rate:g}-{seed}"
            runs.append((rate, place, trace, asyncio.run(real_run(options.model, place, trace))))
    logs = {place: log_files([str(place)]) for _, place, _, _ in runs}
    alike = all(replay(path).difference is None for paths in logs.values() for path in paths)
    fitted = fit_cost(measured_steps(path for _, place, _, _ in runs[::2] for path in logs[place]))
    cells = [
        Cell(
            rate,
            len(trace),
            client,
            engine_figures(logs[place]),
            simulated(trace, real_config(logs[place][0]), fitted),
        )
        for rate, place, trace, client in runs[1::2]
    ]
    return cells, fitted, alike


def make_trace(options: argparse.Namespace, rate: float, seed: int) -> list[TraceRequest]:
    made = Synthetic(
        rate=rate,
        requests=options.requests,
        prompt=options.prompt,
        max_prompt=1024,
        output=options.answer,
        max_output=256,
        seed=seed,
    )
    return list(synthetic(made))


async def real_run(model: str | None, folder: Path, trace: list[TraceRequest]) -> Figures:
    """Serves the trace, recorded; what its front end saw."""
    settings: dict[str, Any] = {"record_dir": str(folder), "num_kv_blocks": BLOCKS}
    rng = random.Random(len(trace))
    ttft, itl, e2e = LatencyHistogram(), LatencyHistogram(), LatencyHistogram()
    tokens = 0

    async def one(llm: AsyncLLM, request: TraceRequest, prompt: list[int], begun: float) -> float:
        nonlocal tokens
        due = begun + request.at
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        params = SamplingParams(max_tokens=request.output_tokens, ignore_eos=True, temperature=0)
        seen, last = 0, due
        async for output in llm.generate({"prompt_token_ids": prompt}, params):
            at, count = time.monotonic(), len(output.outputs[0].token_ids)
            if count > seen:
                if not seen:
                    # What comes with the first token comes no time after it.
                    ttft.add(at - due)
                    seen, last = 1, at
                if count > seen:
                    itl.add((at - last) / (count - seen), count - seen)
                seen, last = count, at
        e2e.add(last - due)
        tokens += seen
        return last

    async with AsyncLLM(model, **settings) as llm:
        prompts = [[rng.randrange(*VOCAB) for _ in range(one.num_prompt)] for one in trace]
        begun = time.monotonic() + 0.5
        ends = await asyncio.gather(
            *(
                one(llm, request, prompt, begun)
                for request, prompt in zip(trace, prompts, strict=True)
            )
        )
    seconds = max(ends) - begun - trace[0].at
    return Figures(tokens / seconds, latency(ttft), latency(itl), latency(e2e))


def engine_figures(paths: list[Path]) -> Figures:
    traffic = Traffic(SLO)
    for path in paths:
        traffic.read(path)
    metrics, begun = traffic.metrics, traffic.begun
    rate = metrics.output_tokens / (metrics.last - begun)
    return Figures(rate, latency(metrics.ttft), latency(metrics.itl), latency(metrics.e2e))


def real_config(path: Path) -> EngineConfig:
    """As the recorded engine had it, its context length made explicit."""
    with open(path, "rb") as file:
        facts = RecordingFile(path, file).core.state.facts
    model = msgspec.structs.replace(facts.config.model, max_model_len=facts.max_model_len)
    return msgspec.structs.replace(facts.config, model=model)


def simulated(trace: list[TraceRequest], config: EngineConfig, fitted: FittedCost) -> Figures:
    simulation = Simulation(config, SimulationOptions(cost=fitted.cost))
    simulation.run(trace)
    report = report_of(simulation)
    rate = report.output_tokens / (report.seconds - trace[0].at)
    return Figures(rate, report.ttft, report.itl, report.e2e)


def words(fitted: FittedCost, cells: list[Cell]) -> str:
    """What is said of it, in Markdown."""
    cost = fitted.cost
    lines = [
        f"A step costs {cost.base_ms:.3g} ms + {cost.token_ms:.3g} a token + "
        f"{cost.sequence_ms:.3g} a sequence + {1000 * cost.context_ms:.3g} per 1,000 pairs of a "
        f"token and one that it attends to, and {cost.overhead_ms:.3g} ms between steps; fitted to "
        f"{fitted.steps:,} steps of other runs, median error {fitted.error_percent:.1f} %.",
    ]
    for cell in cells:
        rows = [_row("output tokens/s", cell, lambda figures: figures.tokens_per_second)]
        for name, field in (
            ("to the first token", "ttft"),
            ("between tokens", "itl"),
            ("end to end", "e2e"),
        ):
            for percentile in ("p50", "p90", "p99"):
                rows.append(
                    _row(
                        f"{name}, {percentile}, ms",
                        cell,
                        lambda figures, f=field, p=percentile: getattr(getattr(figures, f), p),
                    )
                )
        header = ["figure", "client", "engine", "simulated", "to engine", "to client"]
        lines.append(f"**{cell.rate:g} requests/s** ({cell.requests} requests)")
        lines.append(markdown_table(header, rows))
    return "\n\n".join(lines)


def _row(name: str, cell: Cell, value: Any) -> list[str]:
    client, engine, made = value(cell.client), value(cell.engine), value(cell.simulated)
    errors = [f"{100 * (made / real - 1):+.1f} %" for real in (engine, client)]
    return [name, f"{client:,.1f}", f"{engine:,.1f}", f"{made:,.1f}", *errors]


if __name__ == "__main__":
    sys.exit(main())
