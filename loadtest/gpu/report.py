"""results.md: the figures as tables."""

from __future__ import annotations

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


def _section(title: str, header: list[str], lines: list[list[str]]) -> str:
    return f"## {title}\n{markdown_table(header, lines)}" if lines else ""


def _parts(document: dict[str, Any]) -> str:
    lines = [
        [name, part["status"], f"{part['seconds']:.0f}", part.get("reason") or NONE]
        for name, part in document["parts"].items()
    ]
    tests = next(figures.rows(document, "kernel-tests"), None)
    text = _section("Parts", ["part", "ended", "seconds", "why"], lines)
    if tests is not None:
        counts = ", ".join(f"{count} {name}" for name, count in tests["counts"].items())
        cut = "" if tests["ended"] else "; the time was over before the last"
        text += f"\nTests on the device: {counts or 'none'}{cut}.\n"
        text += "".join(f"- failed: `{name}`\n" for name in tests["failed_tests"])
    return text


def _targets(document: dict[str, Any]) -> str:
    lines = [
        [
            each.name,
            f"{'<' if each.at_most else '≥'} {percent(each.aim)}",
            percent(each.value),
            each.verdict,
        ]
        for each in outcomes(document)
    ]
    return _section("Targets", ["what", "aimed at", "measured", ""], lines)


def _limits(document: dict[str, Any]) -> str:
    units = {"copy": (1e9, "GB/s"), "read": (1e9, "GB/s"), "matrix": (1e12, "TFLOP/s, bfloat16")}
    lines = []
    for row in figures.rows(document, "limits"):
        scale, unit = units[row["name"]]
        lines.append([row["name"], f"{row['size']:,}", f"{row['per_s'] / scale:,.1f} {unit}"])
    return _section("The machine's limits", ["", "bytes, or side", "rate"], lines)


def _kernels(document: dict[str, Any], limit: Limits | None) -> str:
    lines = []
    for row in figures.rows(document, "kernels"):
        theirs = row.get("torch_seconds")
        lines.append(
            [
                f"{row['op']}, {row['shape']}",
                f"{1e6 * row['seconds']:,.1f}" + ("" if row["graph"] else " *"),
                percent(figures.share(row, limit)),
                NONE if theirs is None else f"{1e6 * theirs:,.1f}",
                NONE if theirs is None else f"{theirs / row['seconds']:.2f}",
                row["torch"] or NONE,
            ]
        )
    header = ["kernel", "µs", "of the limit", "torch, µs", "times torch", "torch's"]
    text = _section("Kernels", header, lines)
    told = "\nThe limit: bytes at the copy bandwidth, or operations at the matrix rate. *: with the"
    return text and text + told + " host's time to launch it.\n"


def _decode(document: dict[str, Any], limit: Limits | None) -> str:
    lines = [
        [
            f"{row['model']}, {row['mode']}",
            f"{row['batch']}",
            f"{row['context']:,}",
            f"{1000 * row['seconds']:.2f}",
            f"{row['tokens'] / row['seconds']:,.0f}",
            percent(figures.share(row, limit)),
        ]
        for row in figures.rows(document, "steps", what="decode")
    ]
    header = ["decode", "batch", "context", "ms a step", "tokens/s", "of the memory limit"]
    return _section("Decode, through the worker's runner", header, lines)


def _prefill(document: dict[str, Any], limit: Limits | None) -> str:
    lines = [
        [
            f"{row['model']}, {row['mode']}",
            f"{row['sequences']} x {row['length']:,}",
            f"{row['tokens'] / row['seconds']:,.0f}",
            f"{row['flops'] / row['seconds'] / 1e12:,.1f}",
            percent(figures.share(row, limit)),
        ]
        for row in figures.rows(document, "steps", what="prefill")
    ]
    header = ["prefill", "prompts", "tokens/s", "TFLOP/s", "of the matrix limit"]
    return _section("Prefill, through the worker's runner", header, lines)


def _idle(document: dict[str, Any]) -> str:
    lines = [
        [
            f"{row['model']}, batch {row['batch']}",
            f"{1000 * row['busy'] / row['steps']:.3f}",
            f"{1000 * row['step_seconds']:.3f}",
            percent(1 - row["busy"] / row["span"]),
            percent(figures.idle_between(row)),
        ]
        for row in figures.rows(document, "steps", what="idle")
    ]
    header = ["profiled", "GPU busy, ms a step", "step without profiler, ms", "idle in all"]
    return _section("Idle", [*header, "idle between steps, at most"], lines)


def _runs(document: dict[str, Any]) -> str:
    lines = []
    for prefix in ("end-to-end", "transformers"):
        for row in figures.rows(document, prefix, what="run"):
            lines.append(_run(document, row))
    header = ["requests at once", "requests", "seconds", "output tokens/s", "all tokens/s"]
    text = _section("End to end", [*header, "Penstock is faster by"], lines)
    told = (
        "\n*: cut short by the part's time. generate's rate is that of the time in which most of "
        "its rows still\nwanted tokens, which flatters it; of continuous batching's answers the "
        "whole ones count only.\n"
    )
    return text and text + (told if any("*" in line[0] for line in lines) else "")


def _run(document: dict[str, Any], row: Row) -> list[str]:
    own = figures.own_run(document, row)
    ratio = NONE
    if row["system"] != figures.PENSTOCK and own is not None and row["output_tokens"]:
        ratio = f"{figures.output_rate(own) / figures.output_rate(row):.2f}"
    return [
        f"{row['model']}, {row['system']}{'' if row.get('whole', True) else ' *'}",
        f"{row['requests']}",
        f"{row['seconds']:.1f}",
        f"{figures.output_rate(row):,.0f}",
        f"{figures.total_rate(row):,.0f}",
        ratio,
    ]


def _engine_core(document: dict[str, Any]) -> str:
    lines = []
    for row in figures.rows(document, "end-to-end", what="run"):
        core = row["engine_core"]
        step = core["compute"] + core["dispatch"]
        count = max(core["steps"], 1)
        lines.append(
            [
                f"{row['model']}, {row['requests']} requests",
                f"{core['steps']:,}",
                f"{1000 * step / count:.2f}",
                *(f"{1000 * core[name] / count:.3f}" for name in ("plan", "apply")),
                percent((core["plan"] + core["apply"]) / step if step else None),
                percent(core["dispatch"] / step if step else None),
            ]
        )
    header = ["engine core", "steps", "step, ms", "plan, ms", "apply, ms", "plan and apply"]
    text = _section("The engine core's share", [*header, "not hidden, at most"], lines)
    told = (
        "\nPlan and apply: the engine core's own time, against a step's. Not hidden: what a step "
        "took beyond the\nworker's computing (the way there and back included), since the next "
        "step is sent before the last is done.\n"
    )
    return text and text + told


def _notes(document: dict[str, Any]) -> str:
    notes = [
        f"- {name}: {note}\n"
        for name, part in document["parts"].items()
        for note in part.get("notes", [])
    ]
    return "## Notes\n" + "".join(notes) if notes else ""
