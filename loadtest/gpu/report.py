"""results.md: the figures as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import nan
from typing import Any

from loadtest.gpu import columns, figures
from loadtest.gpu.cost import Limits
from loadtest.gpu.extent import CAPTURED, LAUNCHED
from loadtest.gpu.figures import Row
from loadtest.gpu.job import ABSENT, DONE
from loadtest.gpu.parts.counters import SHOWN
from loadtest.report import machine_line, table

NONE = "–"
TRIAL = (
    "A trial of tiny sizes without a GPU: that all of it ran is the result, its figures say "
    "nothing."
)
RUNNER = "through the worker's runner"
BYTES = (1e9, "GB/s")
UNITS = {"matrix": (1e12, "TFLOP/s, bfloat16")}
"""Scale and unit of limits that aren't bytes."""


def to_markdown(document: dict[str, Any]) -> str:
    """document: results.json."""
    limit = figures.limits(document)

    def rows(*parts: str, **wanted: Any) -> list[Row]:
        return [shown(row, limit) for row in figures.rows(document, *parts, **wanted)]

    parts = document["parts"].items()
    ended = [
        {"name": name, "why": each.get("reason") or NONE, "computed": _computed(each), **each}
        for name, each in parts
    ]
    sections = [
        failures(document),
        head(document),
        section("Parts", ended, columns.PARTS) + _tests(document),
        "" if document["dry"] else section("Targets", _targets(document), columns.TARGETS),
        section("The machine's limits", map(_limit, rows("limits")), columns.LIMITS),
        section(
            "Bits of products",
            map(_bits, rows("bits", what="bits")),
            columns.BITS,
            columns.BITS_BELOW,
        ),
        section("Kernels", _timed(rows("kernels")), columns.KERNELS, columns.KERNELS_BELOW),
        section(f"Decode, {RUNNER}", rows("steps", what="decode"), columns.DECODE),
        section(f"Prefill, {RUNNER}", rows("steps", what="prefill"), columns.PREFILL),
        section("Idle", map(_idle, rows("steps", what="idle")), columns.IDLE),
        section("A step's kernels", _step_kernels(rows("steps", what="idle")), columns.STEPS),
        section("Counters", map(_counted, rows("counters", what="counters")), columns.COUNTERS),
        section("Decode by torch alone", _beside_ours(rows), columns.PEER, columns.PEER_BELOW),
        section("Steps with chunks of prompts", _mixed(rows("mixed", what="mixed")), columns.MIXED),
        section("KV blocks kept elsewhere", _stored(rows("stored-kv")), columns.STORED),
        _runs(rows("end-to-end", "transformers", what="run")),
        section(
            "The engine core's share",
            map(_engine_core, rows("end-to-end", what="run")),
            columns.ENGINE_CORE,
            columns.ENGINE_CORE_BELOW,
        ),
        _notes(document),
    ]
    return "\n".join(text for text in sections if text)


def shown(row: Row, limit: Limits | None) -> Row:
    """The row with what follows from its seconds, bytes, operations and tokens."""
    seconds, theirs = row.get("seconds", nan), row.get("torch_seconds")
    return row | {
        "share": percent(figures.share(row, limit)),
        "ms": 1000 * seconds,
        "us": 1e6 * seconds,
        "rate": row.get("tokens", nan) / seconds,
        "tflops": row.get("flops", nan) / seconds / 1e12,
        "star": "" if row.get("graph", True) and row.get("whole", True) else " *",
        "torch": row.get("torch") or NONE,
        "torch_us": NONE if theirs is None else f"{1e6 * theirs:,.1f}",
        "times_torch": ratio(theirs, seconds),
    }


def percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f} %"


def ratio(value: float | None, base: float) -> str:
    return NONE if value is None else f"{value / base:,.2f}"


def failures(document: dict[str, Any]) -> str:
    """What didn't end well, before all else."""
    parts = document["parts"]
    bad = {name: each for name, each in parts.items() if each["status"] not in (DONE, ABSENT)}
    if not bad:
        return f"All {len(parts)} parts are done.\n"
    lines = [f"- **{name}**: {each['status']}. {each['reason']}\n" for name, each in bad.items()]
    return f"{len(parts) - len(bad)} of {len(parts)} parts are done. Not so:\n\n" + "".join(lines)


def head(document: dict[str, Any]) -> str:
    """Command, machine, device and versions, of any of the GPU's documents."""
    found = [f"{name} {value}" for name, value in document["versions"].items() if value]
    lines = [machine_line(document), f"Device: {document['device']}", ", ".join(found)]
    if cache := document.get("cache"):
        new = cache["now"] - cache["carried"]
        lines.append(f"Entries of Triton's cache: {cache['carried']} carried, {new} new.")
    lines += [TRIAL] if document["dry"] else []
    return "\n\n".join(lines) + "\n"


def section(title: str, rows: Iterable[Row], columns: Mapping[str, str], below: str = "") -> str:
    """A table with its title, and what is said below it. Empty without rows."""
    found = list(rows)
    return f"## {title}\n{table(columns, found)}{below}" if found else ""


def _computed(part: dict[str, Any]) -> str:
    spent = part.get("processor_seconds")
    return NONE if spent is None else f"{spent:.0f}"


def _tests(document: dict[str, Any]) -> str:
    works = figures.rows(document, "works", what="tests")
    said = [
        *map(_alike, figures.rows(document, "checks", "kernels", what="rows alike")),
        *map(_checked, _checks(document)),
        *map(_tokens, figures.rows(document, "works", "tokens", what="tokens")),
        *map(_kept, figures.rows(document, "promise", what="promise")),
        *(_outcomes("A model of each mechanism", row) for row in works),
        *(
            _outcomes("Tests on the device", row)
            for row in figures.rows(document, "kernel-tests", "tests", "features", what="tests")
        ),
    ]
    return "".join(f"\n{each}" for each in said)


def _alike(row: Row) -> str:
    unlike = f"not for {row['unlike']}" if row["unlike"] else "for any number of rows"
    return f"A product of {row['shape']}: the same bits {unlike}.\n"


def _checks(document: dict[str, Any]) -> list[list[Row]]:
    found = list(figures.rows(document, "checks", what="check"))
    return [found] if found else []


def _checked(found: list[Row]) -> str:
    worst = max((row for row in found if row["error"] is not None), key=lambda row: row["error"])
    named = f"{worst['op']} {worst['shape']}"
    return (
        f"{len(found)} kernels ran; farthest from its reference: {named}, {worst['error']:.2g}.\n"
    )


def _kept(row: Row) -> str:
    alike = row["answers"] - row["unlike"]
    return f"{row['model']}: {alike} of {row['answers']} answers {row['how']} are those together.\n"


def _tokens(row: Row) -> str:
    """What came of a whole system's answers beside the reference's."""
    alike = row["answers"] - row["unlike"]
    return f"{row['model']}: {alike} of {row['answers']} answers are the reference's.\n"


def _outcomes(what: str, tests: Row) -> str:
    counts = ", ".join(f"{count} {name}" for name, count in tests["counts"].items())
    cut = "" if tests["ended"] else "; the time was over before the last"
    failed = "".join(f"- failed: `{name}`\n" for name in tests["failed_tests"])
    return f"{what}: {counts or 'none'}{cut}.\n{failed}"


def _targets(document: dict[str, Any]) -> Iterable[Row]:
    for target in figures.TARGETS:
        value = target.measured(document)
        aim = f"{'<' if target.at_most else '≥'} {percent(target.aim)}"
        told = {"measured": percent(value), "verdict": target.verdict(value)}
        yield {"name": target.name, "aim": aim, **told}


def _limit(row: Row) -> Row:
    scale, unit = UNITS.get(row["name"], BYTES)
    return row | {"per_s": row["per_s"] / scale, "unit": unit}


def _bits(row: Row) -> Row:
    return row | {"agree": " ".join(f"({', '.join(map(str, each))})" for each in row["groups"])}


def _idle(row: Row) -> Row:
    context = row.get("context")
    return row | {
        "where": "" if context is None else f" at {context:,}, {row['mode']}",
        "busy_ms": 1000 * row["busy"] / row["steps"],
        "step_ms": 1000 * row["step_seconds"],
        "idle": percent(1 - row["busy"] / row["span"]),
        "idle_between": percent(figures.idle_between(row)),
    }


def _step_kernels(found: list[Row]) -> Iterable[Row]:
    for row in found:
        for each in figures.step_kernels(row):
            yield each | {"ms": 1000 * each["seconds"], "share": percent(each["share"])}


def _timed(found: list[Row]) -> Iterable[Row]:
    return (row for row in found if "op" in row)


def _counted(row: Row) -> Row:
    return dict.fromkeys(SHOWN.values(), NONE) | row


def _stored(found: list[Row]) -> Iterable[Row]:
    for row in found:
        if row["what"] != "load":
            same = {True: "yes", False: "no", None: NONE}[row["same"]]
            yield row | {"gb_per_s": row["per_s"] / 1e9, "as_before": same}


def _beside_ours(rows: Any) -> Iterable[Row]:
    """Torch's steps beside the worker's of the same batch, where that was measured."""
    decodes = rows("steps", what="decode", mode=CAPTURED)
    for row in rows("torch", what="peer"):
        own = [each for each in decodes if all(each[n] == row[n] for n in ("model", "batch"))]
        nearest = min(own, key=lambda each: abs(each["context"] - row["context"]), default=None)
        ours = nearest and nearest["seconds"]
        faster = NONE if ours is None else ratio(row["seconds"], ours)
        yield row | {"ours_ms": NONE if ours is None else f"{1000 * ours:.2f}", "faster": faster}


def _mixed(found: list[Row]) -> Iterable[Row]:
    launched = {
        (row["model"], row["decodes"], row["chunk"]): row["seconds"]
        for row in found
        if row["mode"] == LAUNCHED
    }
    for row in found:
        other = launched.get((row["model"], row["decodes"], row["chunk"]))
        padded = row["padded"]
        faster = NONE if padded is None else ratio(other, row["seconds"])
        yield row | {"graph_rows": NONE if padded is None else padded, "faster": faster}


def _runs(found: list[Row]) -> str:
    """Rates of the runs that went to their end: a part of a run has no rate to compare."""
    cut = sorted({row["system"] for row in found if not row.get("whole", True)})
    rows = [
        row
        | {
            "output_rate": figures.output_rate(row),
            "all_rate": (row["prompt_tokens"] + row["output_tokens"]) / row["seconds"],
        }
        for row in found
        if row.get("whole", True)
    ]
    unfinished = columns.UNFINISHED.format(names=", ".join(cut)) if cut else ""
    return section("End to end", rows, columns.RUNS, unfinished + columns.PUBLIC)


def _engine_core(row: Row) -> Row:
    """The engine core's part of a mean step: milliseconds, and shares of it."""
    core = dict(row["engine_core"])
    steps = core.pop("steps")
    means = {f"{name}_ms": 1000 * each / max(steps, 1) for name, each in core.items()}
    step = means["compute_ms"] + means["dispatch_ms"]

    def share(milliseconds: float) -> str:
        return percent(milliseconds / step if step else None)

    shares = {
        "own": share(means["plan_ms"] + means["apply_ms"]),
        "unhidden": share(means["dispatch_ms"]),
    }
    return row | means | {"steps": steps, "step_ms": step} | shares


def _notes(document: dict[str, Any]) -> str:
    notes = [
        f"- {name}: {note}\n"
        for name, part in document["parts"].items()
        for note in part.get("notes", [])
    ]
    return "## Notes\n" + "".join(notes) if notes else ""
