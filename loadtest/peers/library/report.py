"""The comparison of libraries as JSON, as Markdown and as a chart."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtest.peers.library.work import Work
from loadtest.peers.report import OURS, draw_bars, failures, number, peers_table
from loadtest.peers.rounds import Measurement, Outcome
from loadtest.report.facts import machine_line
from loadtest.roofline import probe
from loadtest.roofline.probe import Limits
from penstock.bench.load.report import markdown_table


def rate(outcome: Outcome, work: Work) -> float | None:
    """Median tokens per second; None without a run."""
    runs = outcome.runs.get(work.name)
    return statistics.median(map(work.rate, runs)) if runs else None


def to_dict(measurement: Measurement) -> dict[str, Any]:
    """Everything measured, each run included."""
    return {
        "rounds": measurement.rounds_done,
        "notes": measurement.notes,
        "limits": [limits.to_dict() for limits in measurement.limits],
        "work": [asdict(work) for work in measurement.work],
        "systems": {o.peer.name: _system(measurement, o) for o in measurement.outcomes},
    }


def _system(measurement: Measurement, outcome: Outcome) -> dict[str, Any]:
    done = {
        work.name: {
            "tokens_per_s": rate(outcome, work),
            "each_tokens_per_s": [work.rate(run) for run in runs],
            "runs": [asdict(run) for run in runs],
        }
        for work in measurement.work
        if (runs := outcome.runs.get(work.name))
    }
    return {**outcome.to_dict(), "work": done}


def to_markdown(measurement: Measurement, facts: dict[str, Any]) -> str:
    """facts: what the JSON says about command, time, machine and model."""
    parts = [
        f"{machine_line(facts)}; {facts['model']}; medians of {measurement.rounds_done} round(s), "
        "the systems in turn. Tokens per second:\n",
        _rates_table(measurement),
    ]
    limits = probe.median(measurement.limits)
    if limits is not None:
        parts += [f"{_limits_line(limits)}\n", _limits_table(measurement)]
    parts.append(peers_table(measurement, "system", "start to loaded, s", "how"))
    parts.extend(f"- {note}" for note in _notes(measurement))
    return "\n".join(parts).rstrip() + "\n"


def best_peer(measurement: Measurement, work: Work) -> tuple[str, float] | None:
    """The fastest other system, and ours to its rate; None where either is missing."""
    rates = {o.peer.name: r for o in measurement.outcomes if (r := rate(o, work)) is not None}
    ours = rates.pop(OURS, None)
    if ours is None or not rates:
        return None
    best = max(rates, key=rates.__getitem__)
    return best, ours / rates[best]


def _rates_table(measurement: Measurement) -> str:
    rows = [
        [
            work.name,
            *(_rate_cell(outcome, work) for outcome in measurement.outcomes),
            *_verdict(measurement, work),
        ]
        for work in measurement.work
    ]
    header = ["work", *_names(measurement), "to the best peer", "target", "met"]
    return markdown_table(header, rows)


def _names(measurement: Measurement) -> list[str]:
    return [outcome.peer.name for outcome in measurement.outcomes]


def _rate_cell(outcome: Outcome, work: Work) -> str:
    found = rate(outcome, work)
    if found is None:
        return "failed" if outcome.failures and outcome.peer.takes(work) else "–"
    return number(found) + (" ¹" if work.name in outcome.once else "")


def _verdict(measurement: Measurement, work: Work) -> list[str]:
    """Cells: to the best peer, target, met."""
    best = best_peer(measurement, work)
    target = "–" if work.target is None else f"≥ {work.target:g} ×"
    if best is None:
        return ["–", target, "–"]
    name, ratio = best
    met = "–" if work.target is None else "yes" if ratio >= work.target else "**no**"
    return [f"{ratio:.2f} × {name}", target, met]


def _limits_line(limits: Limits) -> str:
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


def _limits_table(measurement: Measurement) -> str:
    rows = []
    for work in measurement.work:
        most = _limit(measurement, work)
        rates = [rate(outcome, work) for outcome in measurement.outcomes]
        shares = ["–" if not (each and most) else f"{100 * each / most:.0f} %" for each in rates]
        rows.append([work.name, "not measured" if most is None else number(most), *shares])
    return markdown_table(["work", "limit, tok/s", *_names(measurement)], rows)


def _notes(measurement: Measurement) -> list[str]:
    notes = [
        *measurement.notes,
        "decode: tokens after the first, over the time after the first; streams: output tokens "
        "over the whole call; prefill: prompt tokens over a call for one token each. Prompts are "
        "random token ids, other ones in each round; every output's length is checked.",
    ]
    if any(outcome.once for outcome in measurement.outcomes):
        notes.append("¹ Beyond the time set for it: one run, not repeated.")
    return notes + failures(measurement)


def _limit(measurement: Measurement, work: Work) -> float | None:
    """Tokens per second that the machine allows; None where that isn't known."""
    cost, limits = measurement.cost, probe.median(measurement.limits)
    return None if cost is None or limits is None else work.limit(cost, limits)


def draw_chart(measurement: Measurement, path: Path) -> None:
    """Bars of tokens per second, a panel for each piece of work; a line for the limit."""
    draw_bars(
        measurement,
        rate,
        path,
        label="tokens/s (dotted: the machine's limit)",
        limit=lambda work: _limit(measurement, work),
    )
