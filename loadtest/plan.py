"""What `penstock plan` foretells, beside what clients of a real server then see.

    python -m loadtest.plan                    # some two and a half minutes
    python -m loadtest.plan --shares 0.3,0.8 --seconds 60

The default model is served, with a server's usual settings but without drafts, and gets Poisson
traffic at shares of what the engine core can do. Before each share, and after the last, steps are
measured on a server like it, as `penstock bench steps` does, in an equal part of the time: the same
step takes some 10 % more or less a minute later on a machine that isn't alone on its host, and a
first token depends on few steps. What is planned with them for just those requests is compared with
what clients saw. Exit status 1 where a median or a p95 is further off
than allowed, at loads for which engine cores are not too busy: where they are, requests wait for
ever longer, and a little more or less work makes all the difference. The steps of the served run
are recorded, too, and compared with the fit: that part of a difference which is the steps' own is
told apart from the simulator's.

What other programs compute meanwhile is measured, too: while there is time, a load is tried again,
with other requests, if they had more of the processors than allowed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil

from loadtest.report import (
    Document,
    Flags,
    Measurement,
    machine_line,
    markdown_table,
    of_first,
    say,
)
from loadtest.report.chart import chart
from loadtest.report.table import sections
from penstock.cli.replay import silence
from penstock.config.settings import EngineConfig
from penstock_bench.load.options import Length, LoadOptions
from penstock_bench.load.record import RequestRecord
from penstock_bench.load.report import token_gaps
from penstock_bench.load.run import LoadRun, new_event_loop
from penstock_bench.load.target import Target
from penstock_bench.load.workload import Workload, arrival_times
from penstock_engine.record.framing import log_files
from penstock_planning.plan.command import PlanRequest, terms_of
from penstock_planning.plan.search import Planner
from penstock_planning.plan.traffic import PlanTraffic
from penstock_planning.plan.trial import PlanTrial
from penstock_planning.simulate.commands import fit_served
from penstock_planning.simulate.cost import StepCost, read_fitted
from penstock_planning.simulate.fit import Measured, measured_steps
from penstock_planning.simulate.measure import LoadShape, LoneRequests, load
from penstock_planning.simulate.trace import TraceRequest, write_trace
from testing.serving import Server

ALLOWED = 0.15
"""How far off, as a share of what was measured."""
SLO = "ttft_p95=86400s"
"""None that could be broken, which would end a trial."""
INPUT, OUTPUT = "lognormal:96:0.6:512", "lognormal:48:0.5:160"
BUSY = 0.9
"""Share of the time in which a core computes, by the plan, up to which figures are judged."""
FLOOD = 300
"""Requests at once that show what an engine core can do."""
QUIET = 0.04
"""Share of the processors that other programs may have while a load is served."""
DRAWS = 5
"""Plans of each load, of which the median counts."""
SEEDS = 100
"""Distance between the seeds of prompts by which steps are measured at a time and those of the next
time."""
FIGURES = ("ttft_p50", "ttft_p95", "itl_p50", "itl_p95")


def measure(flags: Flags) -> Document:
    silence()
    until = time.monotonic() + flags.limit
    with tempfile.TemporaryDirectory(prefix="pst-") as name:
        folder = Path(name)
        with _recording(folder / "steps") as measured, _recording(folder / "served") as server:
            steps = _Steps(measured, folder, flags.step_seconds // (1 + len(flags.shares)))
            steps.measure()
            most = planned(steps.fit(), folder, options_of(1000.0, FLOOD)).throughput
            served_rows = []
            for number, share in enumerate(flags.shares, start=1):
                served_rows.append(_served(server, share * most, number, flags, until))
                steps.measure()
        file = steps.fit()
        fitted = read_fitted(str(file))
        recorded = {name: _recorded(folder / name) for name in ("steps", "served")}
        rows = []
        for load, records, had in served_rows:
            plans = [planned(file, folder, load, seed) for seed in range(DRAWS)]
            rows.append(
                {
                    "rate": load.rate,
                    "requests": load.requests,
                    "busy": statistics.median(plan.busy for plan in plans),
                    "others": had,
                    "planned_ms": of_trials(plans),
                    "drawn_ms": {
                        name: [draw(figure_of(plan, name) for plan in plans) for draw in (min, max)]
                        for name in FIGURES
                    },
                    "served_ms": of_records(records),
                }
            )
    return {
        "steps": msgspec.to_builtins(fitted),
        "others": max(steps.others),
        "to_fit": {name: _to_fit(found, fitted.cost) for name, found in recorded.items()},
        "most_requests_per_s": most,
        "input": INPUT,
        "output": OUTPUT,
        "rows": rows,
    }


def _recording(folder: Path) -> Server:
    """A server that records its steps there."""
    most = ("--record-dir", str(folder), "--record-max-mib", "4096")
    return Server("--speculative-config", "off", *most)


class _Steps:
    """Steps of a server that records in the folder's `steps`, measured again and again, for some
    seconds each time. others: shares of the processors that other programs had meanwhile."""

    def __init__(self, server: Server, folder: Path, seconds: int) -> None:
        self._server = server
        self._folder = folder
        self._seconds = seconds
        self._first: LoneRequests | None = None
        self.others: list[float] = []

    def measure(self) -> None:
        """Loads the server as `penstock bench steps` does."""
        say("plan: measuring steps")
        others, seed = OtherPrograms(), SEEDS * len(self.others)
        shape = LoadShape("uniform:16:512", "uniform:16:96", self._seconds, seed)
        lone = load(self._server.model, self._server.url, shape)
        self._first = self._first or lone
        self.others.append(others.share())

    def fit(self) -> Path:
        """The file that `penstock bench steps` would write of all that was measured."""
        if self._first is None:
            raise RuntimeError("no steps were measured")
        file = self._folder / "steps.json"
        model, lone, seconds = self._first
        fit_served([self._folder / "steps"], file, lone, seconds, model)
        return file


def _recorded(folder: Path) -> list[Measured]:
    return measured_steps(log_files([str(folder)]))


def _to_fit(found: list[Measured], cost: StepCost) -> float:
    """How many times as long a step took as the fit says of its tokens, at the median."""
    return statistics.median(step.compute / _computed_ms(cost, step) for step in found)


def _computed_ms(cost: StepCost, step: Measured) -> float:
    _, *extent = map(int, step.row)
    return 1000 * cost.seconds(*extent) - cost.overhead_ms


class OtherPrograms:
    """What others than this process and its children compute from now on."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._all, self._own = _computed()

    def share(self) -> float:
        """Returns their share of all processors' time."""
        everything, own = _computed()
        seconds = (time.monotonic() - self._begun) * (psutil.cpu_count() or 1)
        return max(0.0, (everything - self._all - own + self._own) / seconds)


def _computed() -> tuple[float, float]:
    """Processor seconds: of all programs, and of this process with its children."""
    times = psutil.cpu_times()
    own = 0.0
    for process in (here := psutil.Process()), *here.children(recursive=True):
        own += sum(process.cpu_times()[:4])
    return sum(times) - times.idle - times.iowait - times.guest - times.guest_nice, own


Served = tuple[LoadOptions, Sequence[RequestRecord], float]


def _served(server: Server, rate: float, number: int, flags: Flags, until: float) -> Served:
    """What was asked, what became of it, and the share of the processors that others had: of all
    tries the one in which they had least."""
    tries: list[Served] = []
    took = 0.0
    while not tries or (tries[-1][2] > QUIET and time.monotonic() + took < until):
        begun, others = time.monotonic(), OtherPrograms()
        load = options_of(rate, max(round(rate * flags.seconds), 20), number + 100 * len(tries))
        records = served(server.url, server.model, load)
        tries.append((load, records, others.share()))
        took = time.monotonic() - begun
    return min(tries, key=lambda each: each[2])


def options_of(rate: float, requests: int, seed: int = 0) -> LoadOptions:
    """Poisson traffic. seed: another one for each load, or prompts would be in the cache."""
    return LoadOptions(
        seed=seed,
        rate=rate,
        requests=requests,
        input_tokens=Length.parse(INPUT),
        output_tokens=Length.parse(OUTPUT),
        prompt_kind="token-ids",
        temperature=1.0,
        warmup=4,
    )


def planned(steps: Path, folder: Path, load: LoadOptions, seed: int = 0) -> PlanTrial:
    """The plan's figures for just these requests, on one engine core. seed: of how long steps take
    within their spread."""
    workload, trace = Workload(load, "m"), folder / "trace.jsonl"
    requests = []
    for index, at in enumerate(itertools.islice(arrival_times(load), load.requests)):
        request = workload.request(index)
        prompt = json.loads(request.body)["prompt"]
        requests.append(TraceRequest(at, len(prompt), request.output_tokens))
    write_trace(trace, requests)
    asked = PlanRequest(slo=SLO, trace=str(trace), step_cost=str(steps), seed=seed)
    layout, terms = terms_of(asked, EngineConfig())
    return Planner(layout, PlanTraffic(str(trace), load.requests), terms.bounds).at(1)


def served(url: str, model: str, load: LoadOptions) -> Sequence[RequestRecord]:
    """What became of these requests at a server."""
    say(f"plan: {load.requests} requests, {load.rate:.2f} a second")
    run = LoadRun(Target.from_url(url, None, None), Workload(load, model), load)

    async def both() -> None:
        await run.warm_up()
        await run.measure()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(both())
    failed = [record.error for record in run.records if not record.ok]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed, the first with {failed[0]}")
    return run.records


def of_trials(trials: Sequence[PlanTrial]) -> dict[str, float]:
    """The median of each figure. Of few requests, what is drawn for steps makes much of it."""
    return {name: statistics.median(figure_of(trial, name) for trial in trials) for name in FIGURES}


def figure_of(trial: PlanTrial, name: str) -> float:
    """One of FIGURES, in milliseconds."""
    times, _, percentile = name.partition("_")
    return float(getattr(trial, f"{times}_ms")[percentile])


def of_records(records: Sequence[RequestRecord]) -> dict[str, float]:
    values = {
        "ttft": np.array([record.arrivals[0] - record.intended for record in records]),
        "itl": np.concatenate([token_gaps(record) for record in records]),
    }
    parts = {name: name.split("_p") for name in FIGURES}
    return {n: float(1000 * np.percentile(values[t], int(p))) for n, (t, p) in parts.items()}


def differences(row: Document) -> dict[str, float]:
    """What was planned less what was served, as shares of the latter."""
    return {name: row["planned_ms"][name] / found - 1 for name, found in row["served_ms"].items()}


def faults(document: Document) -> list[str]:
    return [
        f"{name} at {row['rate']:.2f} requests/s: {100 * off:+.0f} %"
        for row in document["rows"]
        if row["busy"] <= BUSY
        for name, off in differences(row).items()
        if abs(off) > ALLOWED
    ]


HEAD = """# Plans beside real runs

Of each machine the newest run of `python -m loadtest.plan`."""
WORDS = """
Poisson traffic on one engine core with the default model, prompts of {input} tokens and answers of
{output}, without drafts, at shares of the {most_requests_per_s:.2f} requests/s that it can do by
the plan. The fit tells the median step within {error:.1f} %. Of {draws} draws of how long steps
take within their spread the plan is the median, and the others show how far it could be off by
chance alone. Judged are loads that keep the core
busy for up to {judged:.0f} % of the time. Other programs had {others:.1%} of the processors while
steps were measured.
"""
SAME_STEPS = """ {left_out:.1f} % of the measured steps were left out, as the machine was busy with
something else for a while. At the median, a step took {steps:.2f} times as long as the fit says of
its tokens while steps were measured, and {served:.2f} times while requests were served.
"""


def markdown(document: Document) -> str:
    rows = []
    for row in document["rows"]:
        off = differences(row)
        for name, found in row["served_ms"].items():
            least, most = row.get("drawn_ms", {}).get(name, (0.0, 0.0))
            load = f"{row['rate']:.2f} ({row['requests']}, {row['busy']:.0%}, {row['others']:.1%})"
            rows.append(
                [
                    load,
                    name,
                    f"{row['planned_ms'][name]:.1f}",
                    f"{least:.1f} to {most:.1f}" if most else "–",
                    f"{found:.1f}",
                    f"{100 * off[name]:+.0f} %",
                ]
            )
    load = "requests/s (requests, core busy, others)"
    head = [load, "", "planned, ms", "by draws", "served, ms", "off by"]
    words = WORDS.format(
        **document, error=document["steps"]["error_percent"], judged=100 * BUSY, draws=DRAWS
    )
    if "steps" in (to_fit := document.get("to_fit", {})):
        words += SAME_STEPS.format(**to_fit, left_out=document["steps"]["left_out_percent"])
    beyond = faults(document)
    verdict = f"All that are judged are within {100 * ALLOWED:.0f} %."
    if beyond:
        verdict = f"Further off than {100 * ALLOWED:.0f} %: {', '.join(beyond)}."
    return sections(
        [machine_line(document), " ".join(words.split()), markdown_table(head, rows), verdict]
    )


def draw(path: Path, document: Document) -> None:
    rates = [row["rate"] for row in document["rows"]]
    with chart(path, 2, size=(9, 3.4)) as panels:
        for panel, figure in zip(panels, ("ttft", "itl"), strict=True):
            for percent, colour in ((50, "tab:blue"), (95, "tab:orange")):
                name = f"{figure}_p{percent}"
                for which, style in (("planned_ms", "--"), ("served_ms", "o-")):
                    values = [row[which][name] for row in document["rows"]]
                    label = f"p{percent} {which.removesuffix('_ms')}"
                    panel.plot(rates, values, style, color=colour, label=label)
            _label(panel, figure)


def _label(panel: Any, figure: str) -> None:
    panel.set_xlabel("requests/s")
    panel.set_ylabel(f"{figure}, ms")
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)


def shares(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


FLAGS = {
    "--shares": {
        "type": shares,
        "default": [0.2, 0.35, 0.5],
        "help": "of what one engine core can do, at which is planned and served",
    },
    "--seconds": (22.0, "of each load"),
    "--step-seconds": (48, "in which steps are measured, in parts before, between and after loads"),
    "--limit": (300.0, "seconds after which nothing is tried again"),
}
COMMAND = Measurement(
    "plan",
    __doc__,
    measure,
    markdown,
    FLAGS,
    draw=of_first(draw),
    head=HEAD,
    title=lambda run: str(run["machine"]["cpu"]),
    faults=faults,
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
