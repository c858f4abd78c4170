"""How fast and how exact vectors of texts are, beside sentence-transformers and fastembed
(onnxruntime), with the same weights: `python -m loadtest.vectors MODEL_FOLDER ...`.

Texts are sections of this repository's guides, of mixed lengths. Each library has a process of its
own, with as many threads; they take turns, one computing at a time.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from loadtest.report import (
    ROOT,
    Document,
    Flags,
    Measurement,
    machine_line,
    say,
    sections,
    table,
)
from loadtest.vectors.libraries import BASE, NAMES, Library
from loadtest.vectors.retrieval import passages
from penstock_worker.machine.cpu import usable_threads

CLOSE = 1e-5
"""Most that a number of a vector may differ in float32."""


def measure(flags: Flags) -> Iterator[Document]:
    """What is known after each model."""
    models: list[Document] = []
    for folder in flags.models:
        models.append(_of(folder.resolve(), flags))
        yield {"models": models, "note": flags.note}


def _of(folder: Path, flags: Flags) -> Document:
    whole = list(passages(ROOT / "docs" / "guides").values())
    texts = whole[:: max(1, len(whole) // flags.texts)][: flags.texts]
    with ExitStack() as stack:
        libraries = [Library(name, folder, usable_threads()) for name in flags.systems]
        for each in libraries:
            stack.enter_context(each)
            each.embed(texts[:8])  # Whatever is made at the first call.
        for number in range(flags.rounds):
            for each in libraries:
                each.rates.append(len(texts) / each.embed(texts))
                say(f"{folder.name}, round {number + 1}: {each.name} {each.rates[-1]:.1f} texts/s")
        rows = {each.name: _figures(each, libraries) for each in libraries}
    words = sum(len(each.split()) for each in texts)
    return {"model": folder.name, "texts": len(texts), "words": words, "rows": rows}


def _figures(library: Library, libraries: list[Library]) -> Document:
    base = next((each for each in libraries if each.name == BASE), None)
    return {
        "rates": library.rates,
        "median": statistics.median(library.rates),
        "versions": library.versions,
        "differs": None if base is None else float(np.abs(library.last - base.last).max()),
    }


def faults(document: Document) -> list[str]:
    """What isn't as it should be."""
    rows = {each["model"]: each["rows"].get("penstock_float32", {}) for each in document["models"]}
    return [
        f"{name}: vectors differ by {row['differs']:.1e}"
        for name, row in rows.items()
        if row.get("differs") is not None and row["differs"] > CLOSE
    ]


def markdown(document: Document) -> str:
    parts = [machine_line(document), document.get("note", "")]
    for model in document["models"]:
        parts.append(_speed(model))
    return sections(parts)


def _speed(model: Document) -> str:
    base = model["rows"].get(BASE, {}).get("median")
    rows = [
        {
            "name": NAMES[name],
            "versions": ", ".join(f"{key} {value}" for key, value in row["versions"].items()),
            "median": row["median"],
            "least": min(row["rates"]),
            "most": max(row["rates"]),
            "ratio": "–" if not base else f"{row['median'] / base:.2f} ×",
            "differs": "–" if row["differs"] is None else f"{row['differs']:.0e}",
        }
        for name, row in model["rows"].items()
    ]
    columns = {
        "library": "{name}",
        "texts/s": "{median:.1f}",
        "least to most": "{least:.1f}–{most:.1f}",
        "beside sentence-transformers": "{ratio}",
        "numbers differ from its by at most": "{differs}",
        "versions": "{versions}",
    }
    rounds = len(next(iter(model["rows"].values()))["rates"])
    words = (
        f"{model['texts']} texts of {model['words'] / model['texts']:.0f} words on average; "
        f"medians of {rounds} rounds in turn:"
    )
    return f"{words}\n\n{table(columns, rows)}"


COMMAND = Measurement(
    "vectors",
    __doc__,
    measure,
    markdown,
    {
        "models": {"nargs": "+", "type": Path, "metavar": "FOLDER"},
        "--systems": {"nargs": "+", "default": list(NAMES), "choices": list(NAMES)},
        "--rounds": (5, "of all libraries"),
        "--texts": (64, "in a round"),
        "--note": ("", "what a reader has to know of this run"),
    },
    head="# Vectors of texts, beside other libraries",
    title=lambda run: ", ".join(each["model"] for each in run["models"]),
    faults=faults,
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
