"""The page and the chart, of what the JSON file holds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from loadtest.peers.comparison import failures as failed
from loadtest.peers.comparison import number, peers_rows
from loadtest.peers.library.work import Work
from loadtest.report import Document, chart, machine_line, markdown_table
from loadtest.report.table import listed, sections
from loadtest.roofline.cost import ModelCost
from loadtest.roofline.probe import limits_of

OURS, PLAIN = "penstock", "penstock_without_drafts"
TITLES = {
    OURS: "Penstock",
    PLAIN: "without drafts",
    "llamacpp": "llama.cpp",
    "openvino": "OpenVINO",
    "ik_llamacpp": "ik_llama.cpp",
    "vllm": "vLLM",
}
HEAD = """# Penstock on this machine

Tokens per second, of each model the newest run of `python -m loadtest.machine`, which says how to
measure your machine.

- Prompts are texts: Python's standard library (code), this project's documentation (prose), and
  questions about it (chat); where there are several streams, all three. They differ in each round.
- 1 stream: tokens after the first, over the time after the first. Streams and chat: output tokens
  over the whole. Prefill: prompt tokens over the time to the first token. A chat's history has been
  read before its clock starts. Medians of the rounds; ± is half of what lies between the least and
  the largest.
- Models but Qwen2.5-Coder have random weights: their answers are noise, and drafts of them say
  little about real models. OpenVINO has the same weights in its own int4, of groups of 128, and its
  head and embedding in int8.
- *drafts*: Penstock's rate, as it is by default, over that without drafts. *×*: over the peer's.
- *limit*: what the machine's memory and int8 instructions allow the file: every weight read once a
  step, and keys and values in bfloat16; or every multiply-add of the matrices as two operations.
  *reached*: the share of it, without drafts. *blocks*: the share where int8 products have a scale
  and a minimum for each 32 weights, as in this file; – where they are AMX's or AVX2's.
"""


def text(document: Document) -> str:
    """The page's section about one model."""
    versions = dict.fromkeys(each["version"] for each in document["systems"].values())
    limits = limits_of(document)
    first = (
        f"{machine_line(document)}, {document['instruction_set']}; {document['file']}; "
        f"{document['rounds']} round(s); {', '.join(versions)}. "
        + (f"The machine's limit, {limits.told()}." if limits else "")
    )
    return sections([first, _table(document), listed(_notes(document))])


def failures(document: Document) -> list[str]:
    return failed(document["systems"])


def rate(document: Document, system: str, work: str) -> float | None:
    """The median of tokens per second; None without a run."""
    rates = _rates(document, system, work)
    return statistics.median(rates) if rates else None


def share(document: Document, system: str, work: Work, *, blocks: bool = False) -> float | None:
    """The share of what the machine allows that a system reaches; None where the limit isn't
    known."""
    found, limits = rate(document, system, work.name), limits_of(document)
    if limits is not None and blocks:
        if limits.block_int8_ops_per_s is None:
            return None
        limits = replace(limits, int8_ops_per_s=limits.block_int8_ops_per_s)
    if found is None or limits is None or not limits.ops_per_s:
        return None
    most = work.limit(msgspec.convert(document["model_cost"], ModelCost), limits)
    return most and found / most


def draw(path: Path, runs: Mapping[str, Document]) -> None:
    """A panel for each model: which share of the machine's limit each system reaches."""
    size = (12.0, 2.6 * len(runs))
    named = {system for document in runs.values() for system in document["systems"]}
    order = [*TITLES, *sorted(named - TITLES.keys())]
    with chart(path, rows=len(runs), size=size, squeeze=False) as panels:
        for (panel,), (title, document) in zip(panels, runs.items(), strict=True):
            works = _works(document)
            systems = list(document["systems"])
            for number_, system in enumerate(systems):
                shares = [share(document, system, work) or 0.0 for work in works]
                places = [at + 0.8 * number_ / len(systems) for at in range(len(works))]
                bars = panel.bar(
                    places,
                    [100 * each for each in shares],
                    0.8 / len(systems),
                    label=TITLES.get(system, system),
                    color=f"C{order.index(system)}",
                )
                panel.bar_label(bars, fmt="%.0f", fontsize=6)
            names = [work.name.replace(", ", "\n") for work in works]
            panel.set_xticks([at + 0.4 for at in range(len(works))], names)
            panel.tick_params(axis="x", labelsize=6)
            panel.set_title(title, fontsize=8)
            panel.set_ylabel("% of the limit", fontsize=7)
        panels[0][0].legend(fontsize=7)


def _table(document: Document) -> str:
    systems = list(document["systems"])
    peers = [name for name in systems if name not in (OURS, PLAIN)]
    rows = [[work.name, *_row(document, work, systems, peers)] for work in _works(document)]
    width = len(rows[0]) if rows else 0
    rows += peers_rows(document["systems"], "start to loaded, s", width)
    heads = ["tokens per second", *(TITLES.get(name, name) for name in systems)]
    heads += ["drafts", *(f"× {TITLES.get(name, name)}" for name in peers)]
    return markdown_table([*heads, "limit", "reached", "blocks"], rows)


def _row(document: Document, work: Work, systems: Sequence[str], peers: Sequence[str]) -> list[str]:
    cells = [_cell(document, name, work.name) for name in systems]
    ours = OURS if OURS in systems else PLAIN
    ratios = [_ratio(document, OURS, PLAIN, work.name)]
    ratios += [_ratio(document, ours, name, work.name) for name in peers]
    limits = limits_of(document)
    most = limits and work.limit(msgspec.convert(document["model_cost"], ModelCost), limits)
    plain = PLAIN if PLAIN in systems else OURS
    shares = [share(document, plain, work, blocks=blocks) for blocks in (False, True)]
    told = ["–" if each is None else f"{100 * each:.0f} %" for each in shares]
    return [*cells, *ratios, "–" if most is None else number(most), *told]


def _cell(document: Document, system: str, work: str) -> str:
    rates = _rates(document, system, work)
    if not rates:
        return "failed" if document["systems"][system]["failures"] else "–"
    middle = statistics.median(rates)
    spread = (max(rates) - min(rates)) / 2 / middle
    return number(middle) + (f" ± {100 * spread:.0f} %" if len(rates) > 1 else "")


def _ratio(document: Document, ours: str, other: str, work: str) -> str:
    rates = [rate(document, name, work) for name in (ours, other)]
    if rates[0] is None or not rates[1]:
        return "–"
    return f"{rates[0] / rates[1]:.2f}"


def _notes(document: Document) -> list[str]:
    left_out = document["left_out"]
    told = "; ".join(
        f"{name} (about {seconds:,.0f} s a round)" for name, seconds in left_out.items()
    )
    return [
        *([f"Left out, for the time they would have taken: {told}."] if told else []),
        *(f"{TITLES.get(name, name)}: {why}" for name, why in document["missing"].items()),
        *document["notes"],
        *failures(document),
    ]


def _works(document: Document) -> list[Work]:
    return [msgspec.convert(each, Work) for each in document["works"]]


def _rates(document: Document, system: str, work: str) -> list[float]:
    found: dict[str, Any] = document["systems"].get(system, {"rates": {}})
    return list(found["rates"].get(work, []))
