"""results.md: the figures as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from loadtest.gpu import figures
from loadtest.gpu.extent import CAPTURED, LAUNCHED
from loadtest.gpu.figures import Row
from loadtest.gpu.job import ABSENT, DONE
from loadtest.report import machine_line, markdown_table

NONE = "–"
TRIAL = (
    "A trial of tiny sizes without a GPU: that all of it ran is the result, its figures say "
    "nothing."
)
Columns = Mapping[str, Callable[[Any], str]]
"""Heading to what stands below it, of one row."""
UNITS = {"copy": (1e9, "GB/s"), "read": (1e9, "GB/s"), "matrix": (1e12, "TFLOP/s, bfloat16")}


def to_markdown(document: dict[str, Any]) -> str:
    """document: results.json."""
    sections = [
        failures(document),
        head(document),
        section("Parts", document["parts"].items(), PARTS) + _tests(document),
        "" if document["dry"] else _targets(document),
        section("The machine's limits", figures.rows(document, "limits"), LIMITS),
        section("Kernels", _with_shares(document, "kernels"), KERNELS, KERNELS_BELOW),
        *(
            section(title, _with_shares(document, "steps", what=what), columns)
            for title, what, columns in (
                ("Decode, through the worker's runner", "decode", DECODE),
                ("Prefill, through the worker's runner", "prefill", PREFILL),
                ("Idle", "idle", IDLE),
            )
        ),
        section("Decode by torch alone", _beside_ours(document), PEER, PEER_BELOW),
        _mixed(document),
        section("KV blocks kept elsewhere", figures.rows(document, "stored-kv"), STORED),
        _runs(document),
        section("The engine core's share", _steps(document), ENGINE_CORE, ENGINE_CORE_BELOW),
        _notes(document),
    ]
    return "\n".join(text for text in sections if text)


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


def section(title: str, rows: Iterable[Any], columns: Columns, below: str = "") -> str:
    """A table with its title, and what is said below it. Empty without rows."""
    lines = [[cell(row) for cell in columns.values()] for row in rows]
    return f"## {title}\n{markdown_table(list(columns), lines)}{below}" if lines else ""


def percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f} %"


def _milliseconds(seconds: float, digits: int) -> str:
    return f"{1000 * seconds:.{digits}f}"


def _with_shares(document: dict[str, Any], part: str, **wanted: Any) -> list[Row]:
    """share: see `figures.share`."""
    limit = figures.limits(document)
    found = figures.rows(document, part, **wanted)
    return [row | {"share": figures.share(row, limit)} for row in found]


PARTS: Columns = {
    "part": lambda item: item[0],
    "ended": lambda item: item[1]["status"],
    "seconds": lambda item: f"{item[1]['seconds']:.0f}",
    "why": lambda item: item[1].get("reason") or NONE,
}


def _tests(document: dict[str, Any]) -> str:
    works = figures.rows(document, "works", what="tests")
    said = [
        *map(_alike, figures.rows(document, "checks", what="rows alike")),
        *map(_checked, _checks(document)),
        *map(_tokens, figures.rows(document, "works", "tokens", what="tokens")),
        *map(_kept, figures.rows(document, "promise", what="promise")),
        *(_outcomes("A model of each mechanism", row) for row in works),
        *(
            _outcomes("Tests on the device", row)
            for row in figures.rows(document, "kernel-tests", "tests", what="tests")
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


def _targets(document: dict[str, Any]) -> str:
    measured = [(target, target.measured(document)) for target in figures.TARGETS]
    columns: Columns = {
        "what": lambda each: each[0].name,
        "aimed at": lambda each: f"{'<' if each[0].at_most else '≥'} {percent(each[0].aim)}",
        "measured": lambda each: percent(each[1]),
        "": lambda each: each[0].verdict(each[1]),
    }
    return section("Targets", measured, columns)


def _rate(row: Row) -> str:
    scale, unit = UNITS[row["name"]]
    return f"{row['per_s'] / scale:,.1f} {unit}"


LIMITS: Columns = {
    "": lambda row: row["name"],
    "bytes, or side": lambda row: f"{row['size']:,}",
    "rate": _rate,
}


STORED: Columns = {
    "": lambda row: row["what"],
    "blocks": lambda row: f"{row['blocks']:,}",
    "bytes": lambda row: f"{row['bytes']:,}",
    "GB/s": lambda row: f"{row['per_s'] / 1e9:,.2f}",
    "as before": lambda row: {True: "yes", False: "no", None: NONE}[row["same"]],
}


def _beside_torch(row: Row, scale: float, digits: int) -> str:
    seconds = row.get("torch_seconds")
    return NONE if seconds is None else f"{scale * seconds:,.{digits}f}"


KERNELS: Columns = {
    "kernel": lambda row: f"{row['op']}, {row['shape']}",
    "µs": lambda row: f"{1e6 * row['seconds']:,.1f}" + ("" if row["graph"] else " *"),
    "of the limit": lambda row: percent(row["share"]),
    "torch, µs": lambda row: _beside_torch(row, 1e6, 1),
    "times torch": lambda row: _beside_torch(row, 1 / row["seconds"], 2),
    "torch's": lambda row: row["torch"] or NONE,
}
KERNELS_BELOW = (
    "\nThe limit: bytes at the copy bandwidth, or operations at the matrix rate. *: with the "
    "host's time to launch it.\n"
)
DECODE: Columns = {
    "decode": lambda row: f"{row['model']}, {row['mode']}",
    "batch": lambda row: f"{row['batch']}",
    "context": lambda row: f"{row['context']:,}",
    "ms a step": lambda row: _milliseconds(row["seconds"], 2),
    "tokens/s": lambda row: f"{row['tokens'] / row['seconds']:,.0f}",
    "of the memory limit": lambda row: percent(row["share"]),
}
PREFILL: Columns = {
    "prefill": lambda row: f"{row['model']}, {row['mode']}",
    "prompts": lambda row: f"{row['sequences']} x {row['length']:,}",
    "tokens/s": lambda row: f"{row['tokens'] / row['seconds']:,.0f}",
    "TFLOP/s": lambda row: f"{row['flops'] / row['seconds'] / 1e12:,.1f}",
    "of the matrix limit": lambda row: percent(row["share"]),
}
IDLE: Columns = {
    "profiled": lambda row: f"{row['model']}, batch {row['batch']}",
    "GPU busy, ms a step": lambda row: _milliseconds(row["busy"] / row["steps"], 3),
    "step without profiler, ms": lambda row: _milliseconds(row["step_seconds"], 3),
    "idle in all": lambda row: percent(1 - row["busy"] / row["span"]),
    "idle between steps, at most": lambda row: percent(figures.idle_between(row)),
}


def _beside_ours(document: dict[str, Any]) -> list[Row]:
    """ours: seconds of the worker's step of the same batch, None where that wasn't measured."""
    own = {
        (row["model"], row["batch"]): row["seconds"]
        for row in figures.rows(document, "steps", what="decode", mode=CAPTURED)
    }
    found = _with_shares(document, "torch", what="peer")
    return [row | {"ours": own.get((row["model"], row["batch"]))} for row in found]


PEER: Columns = {
    "torch, cuBLAS, SDPA": lambda row: row["model"] + ("" if row["graph"] else " *"),
    "batch": lambda row: f"{row['batch']}",
    "context": lambda row: f"{row['context']:,}",
    "ms a step": lambda row: _milliseconds(row["seconds"], 2),
    "of the memory limit": lambda row: percent(row["share"]),
    "Penstock's worker, ms": lambda row: (
        NONE if row["ours"] is None else _milliseconds(row["ours"], 2)
    ),
    "Penstock is faster by": lambda row: (
        NONE if row["ours"] is None else f"{row['seconds'] / row['ours']:.2f}"
    ),
}
PEER_BELOW = (
    "\nWithout rotation, paging and sampling, which the worker's step has, and with a context that "
    "is\nshorter by the steps taken before. *: not from a CUDA graph.\n"
)


def _mixed(document: dict[str, Any]) -> str:
    found = _with_shares(document, "mixed", what="mixed")
    launched = {
        (row["model"], row["decodes"], row["chunk"]): row["seconds"]
        for row in found
        if row["mode"] == LAUNCHED
    }

    def gained(row: Row) -> str:
        other = launched.get((row["model"], row["decodes"], row["chunk"]))
        if row["padded"] is None or other is None:
            return NONE
        return f"{other / row['seconds']:.2f}"

    columns: Columns = {
        "prompts beside decodes": lambda row: f"{row['model']}, {row['mode']}",
        "decodes": lambda row: f"{row['decodes']}",
        "chunk": lambda row: f"{row['chunk']}",
        "graph's rows": lambda row: NONE if row["padded"] is None else f"{row['padded']}",
        "ms a step": lambda row: _milliseconds(row["seconds"], 2),
        "tokens/s": lambda row: f"{row['tokens'] / row['seconds']:,.0f}",
        "of the limit": lambda row: percent(row["share"]),
        "faster than launched, by": gained,
    }
    return section("Steps with chunks of prompts", found, columns)


SOURCED = (
    "\nOthers' own figures, not measured here: Llama-3.1-8B on one H100, vLLM 0.23 at saturation: "
    "5,333 output\ntokens/s. vLLM's batch-invariant mode: 22 % (4090D) to 31 % (H20) fewer "
    "tokens/s.\n"
)


def _runs(document: dict[str, Any]) -> str:
    rows = list(figures.rows(document, "end-to-end", "transformers", what="run"))
    own = {
        (row["model"], row["requests"]): figures.output_rate(row)
        for row in rows
        if row["system"] == figures.PENSTOCK
    }

    def faster_by(row: Row) -> str:
        rate = own.get((row["model"], row["requests"]))
        if row["system"] == figures.PENSTOCK or rate is None or not row["output_tokens"]:
            return NONE
        return f"{rate / figures.output_rate(row):.2f}"

    columns: Columns = {
        "requests at once": lambda row: (
            f"{row['model']}, {row['system']}{'' if row.get('whole', True) else ' *'}"
        ),
        "requests": lambda row: f"{row['requests']}",
        "seconds": lambda row: f"{row['seconds']:.1f}",
        "output tokens/s": lambda row: f"{figures.output_rate(row):,.0f}",
        "all tokens/s": lambda row: (
            f"{(row['prompt_tokens'] + row['output_tokens']) / row['seconds']:,.0f}"
        ),
        "Penstock is faster by": faster_by,
    }
    below = (
        "\n*: cut short by the part's time. generate's rate is that of the time in which most of "
        "its rows still\nwanted tokens, which flatters it; of continuous batching's answers the "
        "whole ones count only.\n"
    )
    cut = any(not row.get("whole", True) for row in rows)
    return section("End to end", rows, columns, (below if cut else "") + SOURCED)


def _steps(document: dict[str, Any]) -> list[Row]:
    """Seconds of a mean step, of each run, and how many steps it had."""
    found = []
    for row in figures.rows(document, "end-to-end", what="run"):
        core = dict(row["engine_core"])
        steps = core.pop("steps")
        means = {name: seconds / max(steps, 1) for name, seconds in core.items()}
        means["step"] = means["compute"] + means["dispatch"]
        name = f"{row['model']}, {row['requests']} requests"
        found.append({"name": name, "steps": steps, **means})
    return found


def _of_step(row: Row, *names: str) -> str:
    return percent(sum(row[name] for name in names) / row["step"] if row["step"] else None)


ENGINE_CORE: Columns = {
    "engine core": lambda row: row["name"],
    "steps": lambda row: f"{row['steps']:,.0f}",
    "step, ms": lambda row: _milliseconds(row["step"], 2),
    "plan, ms": lambda row: _milliseconds(row["plan"], 3),
    "apply, ms": lambda row: _milliseconds(row["apply"], 3),
    "plan and apply": lambda row: _of_step(row, "plan", "apply"),
    "not hidden, at most": lambda row: _of_step(row, "dispatch"),
}
ENGINE_CORE_BELOW = (
    "\nPlan and apply: the engine core's own time, against a step's. Not hidden: what a step "
    "took beyond the\nworker's computing (the way there and back included), since the next "
    "step is sent before the last is done.\n"
)


def _notes(document: dict[str, Any]) -> str:
    notes = [
        f"- {name}: {note}\n"
        for name, part in document["parts"].items()
        for note in part.get("notes", [])
    ]
    return "## Notes\n" + "".join(notes) if notes else ""
