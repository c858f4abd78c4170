"""What `penstock simulate`, `fit-cost` and `bench steps` do; each returns what is to be shown."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from penstock.config.settings import EngineConfig
from penstock.errors import InvalidRequest
from penstock.process.machine import describe_machine
from penstock.protocol.from_frontend import Submit
from penstock.protocol.to_frontend import Outputs, Rejected
from penstock_engine.record.framing import Torn, log_files
from penstock_engine.record.replay import RecordedEvent, RecordingFile
from penstock_engine.sessions.effects import Effects
from penstock_planning.cells.traffic import mixed, parse_mixed
from penstock_planning.simulate.agents import agents, parse_agents
from penstock_planning.simulate.fields import fields_of, made_of
from penstock_planning.simulate.fit import fit_cost, measured_steps
from penstock_planning.simulate.metrics import Metrics, Open, Slo
from penstock_planning.simulate.report import as_text, report_of
from penstock_planning.simulate.simulation import Progress, Simulation, SimulationOptions
from penstock_planning.simulate.trace import MAX_TOKENS, TraceRequest, read_trace, write_trace

SYNTHETIC, AGENTS, MIXED = "synthetic:", "agents:", "mixed:"
"""A trace of such a prefix is made, not read."""


def run_simulation(
    trace: str,
    config: EngineConfig,
    options: SimulationOptions,
    *,
    output: Path | None = None,
    chart: Path | None = None,
    progress: Progress | None = None,
) -> str:
    """Simulates a trace, see `requests_of`. Raises InvalidRequest."""
    requests = requests_of(trace)
    simulation = Simulation(config, options)
    simulation.run(requests, progress)
    report = report_of(simulation)
    if output is not None:
        output.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    if chart is not None:
        draw(simulation.metrics, chart)
    return as_text(report)


def requests_of(trace: str) -> Iterator[TraceRequest]:
    """The requests of a trace file, `synthetic:FIELD=VALUE,…`, `agents:…` or `mixed:…`. Raises
    InvalidRequest."""
    if trace.startswith(SYNTHETIC):
        return synthetic(parse(trace.removeprefix(SYNTHETIC)))
    if trace.startswith(AGENTS):
        return agents(parse_agents(trace.removeprefix(AGENTS)))
    if trace.startswith(MIXED):
        return mixed(parse_mixed(trace.removeprefix(MIXED)))
    return read_trace(trace)


def fit_served(
    folders: Sequence[Path], output: Path | None, lone: int, lone_ttft: float, model: str
) -> str:
    """Fits the step's cost to what servers recorded. lone: requests, of which the first had one to
    themselves, lone_ttft: their mean time to the first token as clients saw it, seconds. Raises
    InvalidRequest."""
    paths = log_files([str(folder) for folder in folders])
    traffic = Traffic(Slo(1.0, 1.0))
    try:
        fitted = fit_cost(measured_steps(paths))
        for path in paths:
            traffic.read(path)
    except OSError as error:
        raise InvalidRequest(f"{error.filename}: {error.strerror}") from None
    machine = describe_machine()
    about: dict[str, str | float] = {
        "model": model,
        "cpu": str(machine.get("cpu", "")),
        "num_kv_blocks": traffic.num_kv_blocks,
        "gateway_ms": 1000 * max(0.0, lone_ttft - traffic.mean_wait(lone)),
    }
    text = _json(msgspec.structs.replace(fitted, about=about))
    if output is not None:
        output.write_text(text + "\n", encoding="utf-8")
    return text


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()


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
    text = _json(fitted)
    if output is not None:
        output.write_text(text + "\n", encoding="utf-8")
    return text


def draw(metrics: Metrics, path: Path) -> None:
    """Writes a PNG. Raises InvalidRequest where matplotlib isn't installed."""
    try:
        import matplotlib
    except ImportError:
        raise InvalidRequest(
            "drawing needs matplotlib, which isn't installed: pip install matplotlib"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 2, figsize=(10, 7))
    for panel, title, histogram in (
        (panels[0][0], "to the first token", metrics.ttft),
        (panels[0][1], "between tokens", metrics.itl),
        (panels[1][0], "end to end", metrics.e2e),
    ):
        points = histogram.curve()
        panel.step([1000 * value for value, _ in points], [100 * share for _, share in points])
        panel.set_xscale("log")
        _label(panel, f"ms {title}", "% of them")
    _load(panels[1][1], metrics)
    figure.tight_layout()
    figure.savefig(path, dpi=120, format="png")
    pyplot.close(figure)


def _load(panel: Any, metrics: Metrics) -> None:
    series = metrics.series
    hours = series.width * len(series.sums) > 7200
    unit = 3600 if hours else 1
    times = [(at + 0.5) * series.width / unit for at in range(len(series.sums))]
    panel.plot(times, [total / series.width for total in series.sums], label="output tokens/s")
    _label(panel, "simulated hours" if hours else "simulated seconds", "output tokens/s")
    other = panel.twinx()
    other.plot(times, series.peaks, color="tab:orange", linewidth=0.8)
    other.set_ylabel("open requests of a replica, most", fontsize=9, color="tab:orange")


def _label(panel: Any, x: str, y: str) -> None:
    panel.set_xlabel(x, fontsize=9)
    panel.set_ylabel(y, fontsize=9)
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)


class Traffic:
    """What a recording's front ends asked for, and when the engine answered, by its own clock.

    trace: of requests that ended, by arrival, lengths only; of several sequences the first.
    """

    def __init__(self, slo: Slo) -> None:
        self.metrics = Metrics(slo)
        self._open: dict[bytes, dict[int, Open]] = {}
        self._found: list[Open] = []
        self.num_kv_blocks = 0
        """The size of the pool when the recording ends."""

    def mean_wait(self, first: int) -> float:
        """Mean seconds to the first token of the first requests that arrived and ended."""
        waits = [
            one.first - one.arrival
            for one in sorted(self._found, key=lambda one: one.arrival)[:first]
        ]
        return statistics.fmean(waits) if waits else 0.0

    @property
    def begun(self) -> float:
        """The engine's clock at the first arrival of those that ended."""
        return min((one.arrival for one in self._found), default=0.0)

    @property
    def trace(self) -> list[TraceRequest]:
        """Times count from the first arrival."""
        ended = sorted(self._found, key=lambda one: one.arrival)
        begun = self.begun
        return [
            TraceRequest(one.arrival - begun, one.prompt, one.tokens, one.tenant, one.priority)
            for one in ended
        ]

    def read(self, path: Path) -> None:
        """Replays one file. Raises Damaged, OSError; a torn tail is left out."""
        with open(path, "rb") as file:
            recording = RecordingFile(path, file)
            core = recording.core
            try:
                for record in recording.records():
                    if record.name == "raised":
                        return
                    result = getattr(core, record.name)(*record.arguments)
                    if record.name == "step":
                        self._answered(result, record.arguments[-1])
                    else:
                        self._asked(record)
            except Torn:
                pass
            pool = core.state.scheduling.pool
            if pool is not None:
                self.num_kv_blocks = pool.num_blocks

    def _asked(self, record: RecordedEvent) -> None:
        if record.name == "frontend_ended":
            self._open.pop(record.arguments[0], None)
        if record.name != "frontend_received" or not isinstance(record.arguments[1], Submit):
            return
        session, submit, now = record.arguments
        if submit.resumed:
            return
        tenant = str(getattr(submit, "tenant", "") or "")
        priority = int(getattr(submit, "priority", 0) or 0)
        opened = Open(now, len(submit.prompt_token_ids), tenant, priority)
        self._open.setdefault(session, {})[submit.request] = opened
        self.metrics.submitted += 1

    def _answered(self, effects: Effects, now: float) -> None:
        for session, message, _ in effects.to_frontends:
            requests = self._open.get(session, {})
            if isinstance(message, Rejected) and requests.pop(message.request, None) is not None:
                self.metrics.refuse(message.request, now)
            elif isinstance(message, Outputs):
                mine = [
                    one for one in message.outputs if not one.sequence and one.request in requests
                ]
                for number in self.metrics.outputs(Outputs(mine), requests, now):
                    ended = requests.pop(number)
                    if ended.tokens:
                        self._found.append(ended)


# Traffic made from a seed: Poisson arrivals, log-normal lengths, shared prefixes.


class Synthetic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """rate: arrivals per second.  prompt, output: medians, tokens; sigma: of the logarithm.
    max_prompt, max_output: longer draws are cut there.
    shared: share of requests that begin with one of `groups` prefixes of `prefix` tokens.
    adapters: each request names one of so many, all as often; 0: none does.
    tenants: names with their shares of the traffic, `a:3,b:1`.
    burst: the rate swings by this share, as a sine of `period` seconds."""

    rate: Annotated[float, Meta(gt=0, le=1e6)] = 2.0
    requests: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 1000
    prompt: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] = 128
    prompt_sigma: Annotated[float, Meta(ge=0, le=4)] = 0.8
    max_prompt: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] = 2048
    output: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] = 64
    output_sigma: Annotated[float, Meta(ge=0, le=4)] = 0.6
    max_output: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] = 512
    shared: Annotated[float, Meta(ge=0, le=1)] = 0.0
    groups: Annotated[int, Meta(ge=1, le=65_536)] = 8
    prefix: Annotated[int, Meta(ge=0, le=MAX_TOKENS)] = 256
    adapters: Annotated[int, Meta(ge=0, le=65_536)] = 0
    tenants: str = ""
    burst: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    period: Annotated[float, Meta(gt=0)] = 3600.0
    seed: Annotated[int, Meta(ge=0)] = 0


def parse(text: str) -> Synthetic:
    """`rate=2,requests=1000,prompt=128`; the tenants' list has `+` between its pairs.

    Raises InvalidRequest, which names what isn't allowed.
    """
    fields = {name: value.replace("+", ",") for name, value in fields_of(text).items()}
    made = made_of(fields, Synthetic, f"synthetic trace {text!r}")
    _tenants(made.tenants)
    return made


def synthetic(options: Synthetic) -> Iterator[TraceRequest]:
    """The requests, always the same ones for the same options."""
    rng = random.Random(options.seed)
    draw, lognormal = rng.random, rng.lognormvariate
    prompt, output = math.log(options.prompt), math.log(options.output)
    names, weights = _tenants(options.tenants)
    at = 0.0
    for _ in range(options.requests):
        at += rng.expovariate(_rate(options, at))
        own = min(max(round(lognormal(prompt, options.prompt_sigma)), 1), options.max_prompt)
        out = min(max(round(lognormal(output, options.output_sigma)), 1), options.max_output)
        group = rng.randrange(options.groups) if draw() < options.shared else None
        prefix = 0 if group is None else options.prefix
        tenant = rng.choices(names, weights)[0] if len(names) > 1 else names[0]
        adapter = f"adapter-{rng.randrange(options.adapters)}" if options.adapters else ""
        yield TraceRequest(at, prefix + own, out, tenant, 0, group, prefix, adapter=adapter)


def _rate(options: Synthetic, at: float) -> float:
    if not options.burst:
        return options.rate
    return options.rate * (1 + options.burst * math.sin(2 * math.pi * at / options.period))


def _tenants(text: str) -> tuple[list[str], list[float]]:
    names, weights = [], []
    for pair in text.split(",") if text else [""]:
        name, _, weight = pair.partition(":")
        try:
            weights.append(float(weight or 1))
        except ValueError:
            weights.append(0.0)
        if not (math.isfinite(weights[-1]) and weights[-1] > 0):
            raise InvalidRequest(f"tenants {text!r}: {pair!r} is not NAME:SHARE, as in a:3")
        names.append(name)
    return names, weights
