"""A measurement as Markdown and as a chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadtest.peers.library.measure import Measurement, Outcome
from loadtest.peers.library.work import Work
from loadtest.report.chart import chart
from loadtest.report.facts import machine_line
from loadtest.roofline import probe
from loadtest.roofline.cost import ModelCost
from penstock.bench.load.report import markdown_table

OURS = "penstock"


def to_markdown(measurement: Measurement, facts: dict[str, Any], cost: ModelCost) -> str:
    """facts: what the JSON says about command, time, machine and model."""
    parts = [
        f"{machine_line(facts)}; {facts['model']}; medians of {measurement.rounds_done} round(s), "
        "the systems in turn. Tokens per second:\n",
        _rates_table(measurement),
    ]
    if measurement.limits:
        parts += [f"{_limits_line(measurement)}\n", _limits_table(measurement, cost)]
    parts.append(_systems_table(measurement.outcomes))
    parts.extend(f"- {note}" for note in _notes(measurement))
    return "\n".join(parts).rstrip() + "\n"


def best_peer(measurement: Measurement, work: Work) -> tuple[str, float] | None:
    """The fastest other system and its rate."""
    rates = [
        (rate, outcome.system.name)
        for outcome in measurement.outcomes
        if outcome.system.name != OURS and (rate := outcome.rate(work)) is not None
    ]
    return (max(rates)[1], max(rates)[0]) if rates else None


def ratio(measurement: Measurement, work: Work) -> float | None:
    """Ours to the best peer's; None where either is missing."""
    best = best_peer(measurement, work)
    ours = next((o.rate(work) for o in measurement.outcomes if o.system.name == OURS), None)
    return None if best is None or ours is None else ours / best[1]


def _rates_table(measurement: Measurement) -> str:
    names = [outcome.system.name for outcome in measurement.outcomes]
    rows = []
    for work in measurement.work:
        cells = [_rate_cell(outcome, work) for outcome in measurement.outcomes]
        rows.append([work.name, *cells, *_verdict(measurement, work)])
    return markdown_table(["work", *names, "to the best peer", "target", "met"], rows)


def _rate_cell(outcome: Outcome, work: Work) -> str:
    rate = outcome.rate(work)
    if rate is None:
        return "failed" if outcome.failures and outcome.system.does(work) else "–"
    return _number(rate) + (" ¹" if work.name in outcome.once else "")


def _verdict(measurement: Measurement, work: Work) -> list[str]:
    reached = ratio(measurement, work)
    target = "–" if work.target is None else f"≥ {work.target:g} ×"
    if reached is None:
        return ["–", target, "–"]
    met = "–" if work.target is None else "yes" if reached >= work.target else "**no**"
    best = best_peer(measurement, work)
    return [f"{reached:.2f} × {best[0] if best else ''}", target, met]


def _limits_line(measurement: Measurement) -> str:
    limits = probe.median(measurement.limits)
    if limits is None:
        return ""
    units = [
        f"{value / 1e12:.2f} T {name} operations/s (a multiply-add is two)"
        for name, value in (("int8", limits.int8_ops_per_s), ("bfloat16", limits.bf16_ops_per_s))
        if value is not None
    ]
    return (
        f"The machine's limit, {limits.threads} threads: "
        + ", ".join([f"{limits.read_bytes_per_s / 1e9:.1f} GB/s read from memory", *units])
        + ". What it allows for the GGUF file (every weight read once a step, and keys and values "
        "in bfloat16, or every multiply-add of the matrices in int8, whichever takes longer), and "
        "the share of it that each reached:"
    )


def _limits_table(measurement: Measurement, cost: ModelCost) -> str:
    limits = probe.median(measurement.limits)
    names = [outcome.system.name for outcome in measurement.outcomes]
    rows = []
    for work in measurement.work:
        if limits is None:
            continue
        most = work.limit(cost, limits)
        rates = [outcome.rate(work) for outcome in measurement.outcomes]
        shares = [
            "–" if rate is None or most is None else f"{100 * rate / most:.0f} %" for rate in rates
        ]
        rows.append([work.name, "not measured" if most is None else _number(most), *shares])
    return markdown_table(["work", "limit, tok/s", *names], rows)


def _systems_table(outcomes: list[Outcome]) -> str:
    rows = [
        [
            outcome.system.name,
            outcome.system.version,
            "–" if outcome.ready_s is None else f"{outcome.ready_s:.1f}",
            "–" if outcome.memory_bytes is None else f"{outcome.memory_bytes / 2**20:,.0f}",
            outcome.system.note or "–",
        ]
        for outcome in outcomes
    ]
    return markdown_table(["system", "version", "start to loaded, s", "memory, MiB", "how"], rows)


def _notes(measurement: Measurement) -> list[str]:
    notes = list(measurement.notes)
    notes.append(
        "decode: tokens after the first, over the time after the first; streams: output tokens "
        "over the whole call; prefill: prompt tokens over a call for one token each. Prompts are "
        "random token ids, other ones in each round; every output's length is checked."
    )
    if any(outcome.once for outcome in measurement.outcomes):
        notes.append("¹ Beyond the time set for it: one run, not repeated.")
    for outcome in measurement.outcomes:
        notes += [f"{outcome.system.name}: {f.splitlines()[0]}" for f in outcome.failures]
    return notes


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def draw_chart(measurement: Measurement, cost: ModelCost, path: Path) -> None:
    """Bars of tokens per second, a panel for each piece of work; a line for the limit."""
    limits = probe.median(measurement.limits)
    count = len(measurement.work)
    with chart(path, columns=count, size=(3.6 * count, 3.6), squeeze=False) as panels:
        for panel, work in zip(panels[0], measurement.work, strict=True):
            rates = {o.system.name: rate for o in measurement.outcomes if (rate := o.rate(work))}
            colours = ["C0" if name == OURS else "0.7" for name in rates]
            bars = panel.bar(list(rates), list(rates.values()), color=colours)
            panel.bar_label(bars, fmt="{:,.0f}", fontsize=8)
            most = None if limits is None else work.limit(cost, limits)
            if most is not None:
                panel.axhline(most, color="C3", linestyle=":", linewidth=1)
            panel.set_title(work.name, fontsize=8)
            panel.tick_params(axis="x", labelrotation=35, labelsize=8)
            panel.margins(y=0.12)
        panels[0][0].set_ylabel("tokens/s (dotted: the machine's limit)", fontsize=8)
