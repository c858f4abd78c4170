"""Penstock's library beside llama.cpp, OpenVINO GenAI, vLLM and transformers, in one run:
`python -m loadtest.peers.inprocess --help`."""

from __future__ import annotations

import statistics
import sys
from dataclasses import asdict
from pathlib import Path

from loadtest.peers.comparison import OURS, Comparison, number, peers_table
from loadtest.peers.library.systems import NAMES, System, make_system
from loadtest.peers.library.work import SMOKE_WORK, WORK, Run, Work
from loadtest.peers.rounds import Measurement, Outcome
from loadtest.report import Document, markdown_table
from loadtest.roofline import probe
from loadtest.roofline.probe import Limits


class Libraries(Comparison):
    """Penstock's library beside llama.cpp, OpenVINO GenAI, vLLM and transformers, in one run.

    Each loads its model once, in a process of its own environment, and warms up. Then they take
    turns: a round is every piece of work on every system, one computing at a time. A probe of the
    machine's limits runs before each round. Medians go to a JSON file, a Markdown table and a bar
    chart.
    """

    section, caption = "inprocess", "tokens per second"
    label = "tokens/s (dotted: the machine's limit)"
    peers, pieces, names = "systems", "work", NAMES
    work, smoke_work, seconds = WORK, SMOKE_WORK, 780.0
    probes = True

    def make(self, name: str, model: Path) -> System:
        return make_system(name, model)

    def figures(self, work: Work, runs: list[Run]) -> Document:
        rates = [work.rate(run) for run in runs]
        each = [asdict(run) for run in runs]
        return {
            "tokens_per_s": statistics.median(rates),
            "each_tokens_per_s": rates,
            "runs": each,
        }

    def rate(self, outcome: Outcome, work: Work) -> float | None:
        """Median tokens per second; None without a run."""
        runs = outcome.runs.get(work.name)
        return statistics.median(map(work.rate, runs)) if runs else None

    def limit(self, measurement: Measurement, work: Work) -> float | None:
        """Tokens per second."""
        cost, limits = measurement.cost, probe.median(measurement.limits)
        return None if cost is None or limits is None else work.limit(cost, limits)

    def tables(self, measurement: Measurement) -> list[str]:
        parts = [
            f"medians of {measurement.rounds_done} round(s), the systems in turn. "
            "Tokens per second:",
            _rates_table(measurement),
        ]
        limits = probe.median(measurement.limits)
        if limits is not None:
            parts += [f"{_limits_line(limits)}\n", _limits_table(measurement)]
        return [*parts, peers_table(measurement, "system", "start to loaded, s", "how")]

    def notes(self, measurement: Measurement) -> list[str]:
        notes = [
            *measurement.notes,
            "decode: tokens after the first, over the time after the first; streams: output tokens "
            "over the whole call; prefill: prompt tokens over a call for one token each. Prompts "
            "are random token ids, other ones in each round; every output's length is checked.",
        ]
        if any(outcome.once for outcome in measurement.outcomes):
            notes.append("¹ Beyond the time set for it: one run, not repeated.")
        return notes


LIBRARIES = Libraries()


def best_peer(measurement: Measurement, work: Work) -> tuple[str, float] | None:
    """The fastest other system, and ours to its rate; None where either is missing."""
    rates = {
        o.peer.name: r for o in measurement.outcomes if (r := LIBRARIES.rate(o, work)) is not None
    }
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
    found = LIBRARIES.rate(outcome, work)
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
        most = LIBRARIES.limit(measurement, work)
        rates = [LIBRARIES.rate(outcome, work) for outcome in measurement.outcomes]
        shares = ["–" if not (each and most) else f"{100 * each / most:.0f} %" for each in rates]
        rows.append([work.name, "not measured" if most is None else number(most), *shares])
    return markdown_table(["work", "limit, tok/s", *_names(measurement)], rows)


if __name__ == "__main__":
    sys.exit(LIBRARIES.main())
