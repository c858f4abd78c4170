"""results.md: the figures as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from loadtest.gpu import figures
from loadtest.gpu.cost import Limits
from loadtest.gpu.figures import Row
from loadtest.gpu.targets import outcomes
from loadtest.report.facts import machine_line
from penstock.bench.load.report import markdown_table

NONE = "–"
TRIAL = (
    "A trial of tiny sizes without a GPU: that all of it ran is the result, its figures say "
    "nothing."
)


def to_markdown(document: dict[str, Any]) -> str:
    """document: results.json."""
    limit = figures.limits(document)
    sections = [
        head(document),
        _parts(document),
        "" if document["dry"] else _targets(document),
        _limits(document),
        _kernels(document, limit),
        _decode(document, limit),
        _prefill(document, limit),
        _idle(document),
        _runs(document),
        _engine_core(document),
        _notes(document),
    ]
    return "\n".join(section for section in sections if section)


def percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f} %"


def head(document: dict[str, Any]) -> str:
    """Command, machine, device, versions and charts, of any of the GPU's documents."""
    found = [f"{name} {value}" for name, value in document["versions"].items() if value]
    lines = [machine_line(document), f"Device: {document['device']}", ", ".join(found)]
    lines += [TRIAL] if document["dry"] else []
    charts = document.get("charts", {})
    lines += [f"![{name}]({name})" for name in charts.get("files", [])]
    lines += [f"No charts: {charts['reason']}"] if charts.get("reason") else []
    return "\n\n".join(lines) + "\n"


Columns = Mapping[str, Callable[[Any], str]]
"""Heading to what stands below it, of one row."""
UNITS = {"copy": (1e9, "GB/s"), "read": (1e9, "GB/s"), "matrix": (1e12, "TFLOP/s, bfloat16")}


def _section(title: str, rows: Iterable[Any], columns: Columns, below: str = "") -> str:
    """A table with its title, and what is said below it. Empty without rows."""
    lines = [[cell(row) for cell in columns.values()] for row in rows]
    return f"## {title}\n{markdown_table(list(columns), lines)}{below}" if lines else ""


def _milliseconds(seconds: float, digits: int) -> str:
    return f"{1000 * seconds:.{digits}f}"


def _parts(document: dict[str, Any]) -> str:
    tests = next(figures.rows(document, "kernel-tests"), None)
    below = ""
    if tests is not None:
        counts = ", ".join(f"{count} {name}" for name, count in tests["counts"].items())
        cut = "" if tests["ended"] else "; the time was over before the last"
        below = f"\nTests on the device: {counts or 'none'}{cut}.\n"
        below += "".join(f"- failed: `{name}`\n" for name in tests["failed_tests"])
    columns: Columns = {
        "part": lambda row: row[0],
        "ended": lambda row: row[1]["status"],
        "seconds": lambda row: f"{row[1]['seconds']:.0f}",
        "why": lambda row: row[1].get("reason") or NONE,
    }
    return _section("Parts", document["parts"].items(), columns, below)


def _targets(document: dict[str, Any]) -> str:
    columns: Columns = {
        "what": lambda each: each.name,
        "aimed at": lambda each: f"{'<' if each.at_most else '≥'} {percent(each.aim)}",
        "measured": lambda each: percent(each.value),
        "": lambda each: each.verdict,
    }
    return _section("Targets", outcomes(document), columns)


def _limits(document: dict[str, Any]) -> str:
    def rate(row: Row) -> str:
        scale, unit = UNITS[row["name"]]
        return f"{row['per_s'] / scale:,.1f} {unit}"

    columns: Columns = {
        "": lambda row: row["name"],
        "bytes, or side": lambda row: f"{row['size']:,}",
        "rate": rate,
    }
    return _section("The machine's limits", figures.rows(document, "limits"), columns)


def _kernels(document: dict[str, Any], limit: Limits | None) -> str:
    def theirs(row: Row) -> Any:
        return row.get("torch_seconds")

    columns: Columns = {
        "kernel": lambda row: f"{row['op']}, {row['shape']}",
        "µs": lambda row: f"{1e6 * row['seconds']:,.1f}" + ("" if row["graph"] else " *"),
        "of the limit": lambda row: percent(figures.share(row, limit)),
        "torch, µs": lambda row: NONE if theirs(row) is None else f"{1e6 * theirs(row):,.1f}",
        "times torch": lambda row: (
            NONE if theirs(row) is None else f"{theirs(row) / row['seconds']:.2f}"
        ),
        "torch's": lambda row: row["torch"] or NONE,
    }
    below = (
        "\nThe limit: bytes at the copy bandwidth, or operations at the matrix rate. *: with the "
        "host's time to launch it.\n"
    )
    return _section("Kernels", figures.rows(document, "kernels"), columns, below)


def _decode(document: dict[str, Any], limit: Limits | None) -> str:
    columns: Columns = {
        "decode": lambda row: f"{row['model']}, {row['mode']}",
        "batch": lambda row: f"{row['batch']}",
        "context": lambda row: f"{row['context']:,}",
        "ms a step": lambda row: _milliseconds(row["seconds"], 2),
        "tokens/s": lambda row: f"{row['tokens'] / row['seconds']:,.0f}",
        "of the memory limit": lambda row: percent(figures.share(row, limit)),
    }
    rows = figures.rows(document, "steps", what="decode")
    return _section("Decode, through the worker's runner", rows, columns)


def _prefill(document: dict[str, Any], limit: Limits | None) -> str:
    columns: Columns = {
        "prefill": lambda row: f"{row['model']}, {row['mode']}",
        "prompts": lambda row: f"{row['sequences']} x {row['length']:,}",
        "tokens/s": lambda row: f"{row['tokens'] / row['seconds']:,.0f}",
        "TFLOP/s": lambda row: f"{row['flops'] / row['seconds'] / 1e12:,.1f}",
        "of the matrix limit": lambda row: percent(figures.share(row, limit)),
    }
    rows = figures.rows(document, "steps", what="prefill")
    return _section("Prefill, through the worker's runner", rows, columns)


def _idle(document: dict[str, Any]) -> str:
    columns: Columns = {
        "profiled": lambda row: f"{row['model']}, batch {row['batch']}",
        "GPU busy, ms a step": lambda row: _milliseconds(row["busy"] / row["steps"], 3),
        "step without profiler, ms": lambda row: _milliseconds(row["step_seconds"], 3),
        "idle in all": lambda row: percent(1 - row["busy"] / row["span"]),
        "idle between steps, at most": lambda row: percent(figures.idle_between(row)),
    }
    return _section("Idle", figures.rows(document, "steps", what="idle"), columns)


def _runs(document: dict[str, Any]) -> str:
    rows = [
        row
        for prefix in ("end-to-end", "transformers")
        for row in figures.rows(document, prefix, what="run")
    ]

    def faster_by(row: Row) -> str:
        own = figures.own_run(document, row)
        if row["system"] == figures.PENSTOCK or own is None or not row["output_tokens"]:
            return NONE
        return f"{figures.output_rate(own) / figures.output_rate(row):.2f}"

    def name(row: Row) -> str:
        return f"{row['model']}, {row['system']}{'' if row.get('whole', True) else ' *'}"

    columns: Columns = {
        "requests at once": name,
        "requests": lambda row: f"{row['requests']}",
        "seconds": lambda row: f"{row['seconds']:.1f}",
        "output tokens/s": lambda row: f"{figures.output_rate(row):,.0f}",
        "all tokens/s": lambda row: f"{figures.total_rate(row):,.0f}",
        "Penstock is faster by": faster_by,
    }
    below = (
        "\n*: cut short by the part's time. generate's rate is that of the time in which most of "
        "its rows still\nwanted tokens, which flatters it; of continuous batching's answers the "
        "whole ones count only.\n"
    )
    cut = any(not row.get("whole", True) for row in rows)
    return _section("End to end", rows, columns, below if cut else "")


def _engine_core(document: dict[str, Any]) -> str:
    rows = figures.rows(document, "end-to-end", what="run")

    def mean(row: Row, *names: str) -> float:
        """Seconds of one step."""
        core = row["engine_core"]
        return sum(core[name] for name in names) / max(core["steps"], 1)

    def share(row: Row, *names: str) -> str:
        step = mean(row, "compute", "dispatch")
        return percent(mean(row, *names) / step if step else None)

    columns: Columns = {
        "engine core": lambda row: f"{row['model']}, {row['requests']} requests",
        "steps": lambda row: f"{row['engine_core']['steps']:,}",
        "step, ms": lambda row: _milliseconds(mean(row, "compute", "dispatch"), 2),
        "plan, ms": lambda row: _milliseconds(mean(row, "plan"), 3),
        "apply, ms": lambda row: _milliseconds(mean(row, "apply"), 3),
        "plan and apply": lambda row: share(row, "plan", "apply"),
        "not hidden, at most": lambda row: share(row, "dispatch"),
    }
    below = (
        "\nPlan and apply: the engine core's own time, against a step's. Not hidden: what a step "
        "took beyond the\nworker's computing (the way there and back included), since the next "
        "step is sent before the last is done.\n"
    )
    return _section("The engine core's share", rows, columns, below)


def _notes(document: dict[str, Any]) -> str:
    notes = [
        f"- {name}: {note}\n"
        for name, part in document["parts"].items()
        for note in part.get("notes", [])
    ]
    return "## Notes\n" + "".join(notes) if notes else ""
