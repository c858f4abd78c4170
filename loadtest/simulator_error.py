"""How far `penstock simulate` is from a real run on this machine.

    python -m loadtest.simulator_error                    # some two minutes
    python -m loadtest.simulator_error --requests 60 --rates 2 --output FOLDER

Two recorded runs of a real engine for each rate, on different traces: the step's cost is fitted to
the first ones together, and the second ones are simulated with it.  Latencies of the real runs are
told by the front end that asked (`client`) and by the engine's own clock (`engine`), which is the
one that the simulator has.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadtest.report import Document, Flags, Measurement, machine_line, markdown_table
from penstock import AsyncLLM, SamplingParams
from penstock.config.settings import EngineConfig
from penstock.protocol.to_frontend import Outputs, SequenceOutput
from penstock_engine.record.framing import log_files
from penstock_engine.record.replay import RecordingFile, replay
from penstock_engine.simulate.commands import Synthetic, Traffic, synthetic
from penstock_engine.simulate.cost import FittedCost
from penstock_engine.simulate.fit import fit_cost, measured_steps
from penstock_engine.simulate.metrics import Metrics, Open, Slo
from penstock_engine.simulate.report import Latency, latency
from penstock_engine.simulate.simulation import Simulation, SimulationOptions
from penstock_engine.simulate.trace import TraceRequest

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


@dataclass(frozen=True)
class RealRun:
    rate: float
    trace: list[TraceRequest]
    client: Figures
    logs: list[Path]  # its recording


def measure(flags: Flags) -> Document:
    """All runs; whether each recording replays to the same decisions."""
    with tempfile.TemporaryDirectory(prefix="penstock-record-") as folder:
        place = Path(folder)
        runs = [real_run(place, rate, seed, flags) for rate in flags.rates for seed in (1, 2)]
        alike = all(replay(path).difference is None for run in runs for path in run.logs)
        if not alike:
            raise RuntimeError("a recording didn't replay to the same decisions")
        fitted = fit_cost(measured_steps(path for run in runs[::2] for path in run.logs))
        cells = [
            Cell(run.rate, len(run.trace), run.client, recorded(run), simulated(run, fitted))
            for run in runs[1::2]
        ]
    return {"fit": msgspec.to_builtins(fitted), "cells": msgspec.to_builtins(cells)}


def real_run(folder: Path, rate: float, seed: int, options: Flags) -> RealRun:
    """Serves a trace, and records it."""
    made = Synthetic(
        rate=rate,
        requests=options.requests,
        prompt=96,
        max_prompt=1024,
        output=options.answer,
        max_output=256,
        seed=seed,
    )
    trace, place = list(synthetic(made)), folder / f"{rate:g}-{seed}"
    client = asyncio.run(served(place, trace))
    return RealRun(rate, trace, client, log_files([str(place)]))


async def served(folder: Path, trace: list[TraceRequest]) -> Figures:
    """What the front end saw."""
    metrics, rng = Metrics(SLO), random.Random(len(trace))
    prompts = [[rng.randrange(*VOCAB) for _ in range(one.num_prompt)] for one in trace]
    async with AsyncLLM(record_dir=str(folder), num_kv_blocks=BLOCKS) as llm:
        begun = time.monotonic() + 0.5
        async with asyncio.TaskGroup() as group:
            for request, prompt in zip(trace, prompts, strict=True):
                group.create_task(ask(llm, request, prompt, begun + request.at, metrics))
    return figures(metrics, begun + trace[0].at)


async def ask(
    llm: AsyncLLM, request: TraceRequest, prompt: list[int], due: float, metrics: Metrics
) -> None:
    """One request, when it is due; tells the metrics what comes."""
    await asyncio.sleep(max(0.0, due - time.monotonic()))
    params = SamplingParams(max_tokens=request.output_tokens, ignore_eos=True, temperature=0)
    opened = Open(due, len(prompt), request.tenant)

    async for output in llm.generate({"prompt_token_ids": prompt}, params):
        (answer,) = output.outputs
        new = list(answer.token_ids[opened.tokens :])
        # What comes with the first token comes no time after it.
        cut = 0 if opened.tokens else 1
        first = SequenceOutput(0, 0, new[:cut])
        others = SequenceOutput(0, 0, new[cut:], finish=answer.finish_reason)
        metrics.outputs(Outputs([first, others]), {0: opened}, time.monotonic())


def recorded(run: RealRun) -> Figures:
    """By the engine's own clock."""
    traffic = Traffic(SLO)
    for path in run.logs:
        traffic.read(path)
    return figures(traffic.metrics, traffic.begun)


def simulated(run: RealRun, fitted: FittedCost) -> Figures:
    simulation = Simulation(real_config(run.logs[0]), SimulationOptions(cost=fitted.cost))
    simulation.run(run.trace)
    return figures(simulation.metrics, run.trace[0].at)


def real_config(path: Path) -> EngineConfig:
    """As the recorded engine had it, its context length made explicit."""
    with open(path, "rb") as file:
        facts = RecordingFile(path, file).core.state.facts
    model = msgspec.structs.replace(facts.config.model, max_model_len=facts.max_model_len)
    return msgspec.structs.replace(facts.config, model=model)


def figures(metrics: Metrics, begun: float) -> Figures:
    rate = metrics.output_tokens / (metrics.last - begun)
    return Figures(rate, latency(metrics.ttft), latency(metrics.itl), latency(metrics.e2e))


LATENCIES = {"to the first token": "ttft", "between tokens": "itl", "end to end": "e2e"}
HEAD = ["figure", "client", "engine", "simulated", "to engine", "to client"]


def words(document: Document) -> str:
    """What is said of it, in Markdown."""
    fitted = msgspec.convert(document["fit"], FittedCost)
    cost = fitted.cost
    lines = [
        machine_line(document),
        f"A step costs {cost.base_ms:.3g} ms + {cost.token_ms:.3g} a token + "
        f"{cost.sequence_ms:.3g} a sequence + {1000 * cost.context_ms:.3g} per 1,000 pairs of a "
        f"token and one that it attends to, and {cost.overhead_ms:.3g} ms between steps; fitted to "
        f"{fitted.steps:,} steps of other runs, median error {fitted.error_percent:.1f} %.",
    ]
    for cell in msgspec.convert(document["cells"], list[Cell]):
        lines.append(f"**{cell.rate:g} requests/s** ({cell.requests} requests)")
        lines.append(markdown_table(HEAD, list(rows(cell))))
    return "\n\n".join(lines) + "\n"


def rows(cell: Cell) -> Iterator[list[str]]:
    told = (cell.client, cell.engine, cell.simulated)
    yield row("output tokens/s", *(each.tokens_per_second for each in told))
    for name, field in LATENCIES.items():
        for percentile in ("p50", "p90", "p99"):
            values = (getattr(getattr(each, field), percentile) for each in told)
            yield row(f"{name}, {percentile}, ms", *values)


def row(name: str, client: float, engine: float, simulated: float) -> list[str]:
    errors = [f"{100 * (simulated / real - 1):+.1f} %" for real in (engine, client)]
    return [name, *(f"{value:,.1f}" for value in (client, engine, simulated)), *errors]


FLAGS = {
    "--rates": {"type": float, "nargs": "+", "default": [1.5, 3.0, 4.5], "help": "requests/s"},
    "--requests": (100, "of each run"),
    "--answer": (48, "median tokens of an answer"),
}
COMMAND = Measurement("simulator_error", __doc__, measure, words, FLAGS, section="simulator-error")

if __name__ == "__main__":
    sys.exit(COMMAND.main())
