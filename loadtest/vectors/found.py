"""What texts' vectors find: sections of this repository's guides that answer questions, written and
labelled by hand, and the same in the order of a second, larger model:
`python -m loadtest.vectors.found SMALL_MODEL_FOLDER [LARGE_MODEL_FOLDER]`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from loadtest.report import ROOT, Document, Flags, Measurement, machine_line, sections, table
from loadtest.vectors.libraries import BASE, NAMES, Library
from loadtest.vectors.retrieval import QUESTIONS, orders, passages, quality, reordered
from penstock_worker.machine.cpu import usable_threads

OURS = "penstock_float32"
KEPT = 20
"""Texts of the first model's order that the second one reorders."""
COLUMNS = {
    "way": "{way}",
    "library": "{name}",
    "nDCG@10": "{ndcg_at_10:.3f}",
    "found first": "{first:.0%}",
    "among the first ten": "{recall_at_10:.0%}",
    "whole orders that are sentence-transformers'": "{same:.0%}",
}


def measure(flags: Flags) -> Document:
    whole = passages(ROOT / "docs" / "guides")
    places = {name: at for at, name in enumerate(whole)}
    wanted = [places[name] for name in QUESTIONS.values()]
    asked = [*QUESTIONS, *whole.values()]
    models = {folder.name: _orders(folder.resolve(), asked, flags) for folder in flags.models}
    ways = dict(models)
    if len(models) == 2:
        (small, first), (large, second) = models.items()
        ways[f"the first {KEPT} of {small}, in the order of {large}"] = {
            name: reordered(first[name], second[name], KEPT) for name in first
        }
    rows = [
        {
            "way": way,
            "name": name,
            "same": float((order == by_library[BASE]).all(axis=1).mean()),
            **quality(order, wanted),
        }
        for way, by_library in ways.items()
        for name, order in by_library.items()
    ]
    return {"questions": len(QUESTIONS), "sections": len(whole), "rows": rows}


def _orders(folder: Path, asked: list[str], flags: Flags) -> dict[str, np.ndarray]:
    """Orders of all sections for each question, by library."""
    found = {}
    for name in flags.systems:
        with Library(name, folder, usable_threads()) as library:
            library.embed(asked)
            count = len(QUESTIONS)
            found[name] = orders(library.last[:count], library.last[count:])
    return found


def faults(document: Document) -> list[str]:
    """What isn't as it should be."""
    rows = [row for row in document["rows"] if row["name"] == OURS]
    return [
        f"{row['way']}: {1 - row['same']:.0%} of the orders differ"
        for row in rows
        if row["same"] < 1.0
    ]


def markdown(document: Document) -> str:
    words = (
        f"{document['questions']} questions, each of which one of {document['sections']} sections "
        "answers:"
    )
    rows = [{**row, "name": NAMES[row["name"]]} for row in document["rows"]]
    return sections([machine_line(document), f"{words}\n\n{table(COLUMNS, rows)}"])


COMMAND = Measurement(
    "vectors_found",
    __doc__,
    measure,
    markdown,
    {
        "models": {"nargs": "+", "type": Path, "metavar": "FOLDER"},
        "--systems": {"nargs": "+", "default": ["penstock", OURS, BASE], "choices": list(NAMES)},
    },
    faults=faults,
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
