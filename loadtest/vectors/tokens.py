"""How fast and how exact vectors and weights of tokens are, beside their makers' libraries: vectors
for late interaction beside pylate, BGE-M3's three outputs beside FlagEmbedding:
`python -m loadtest.vectors.tokens MODEL_FOLDER`.

The models are made of an embedding model (see making.py). Each library has a process of its own,
with as many threads; they take turns, one computing at a time.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from loadtest.report import ROOT, Document, Flags, Measurement, machine_line, say, sections, table
from loadtest.vectors.libraries import Library, python_of
from loadtest.vectors.retrieval import QUESTIONS, passages
from penstock_worker.machine.cpu import usable_threads

CLOSE = 1e-5
"""Most that a number may differ."""
ENVIRONMENT = "tokens"
"""Folder under PEERS_DIR of the environment that has the makers' libraries."""
MAKER = Path(__file__).with_name("making.py")

KINDS: dict[str, tuple[str, str, str, str]] = {
    "late interaction, documents": ("late", "penstock_documents", "pylate_documents", "pylate"),
    "late interaction, queries": ("late", "penstock_queries", "pylate_queries", "pylate"),
    "BGE-M3, vectors of texts": ("m3", "penstock_dense", "m3_dense", "FlagEmbedding"),
    "BGE-M3, vectors of tokens": ("m3", "penstock_tokens", "m3_tokens", "FlagEmbedding"),
    "BGE-M3, weights of tokens": ("m3", "penstock_sparse", "m3_sparse", "FlagEmbedding"),
}
"""The model, our process, the makers' process and their library, for each kind of numbers."""


def measure(flags: Flags) -> Document:
    whole = list(passages(ROOT / "docs" / "guides").values())
    texts = whole[:: max(1, len(whole) // flags.texts)][: flags.texts]
    rows = []
    with tempfile.TemporaryDirectory() as made:
        folders = {kind: Path(made) / kind for kind in ("late", "m3")}
        for kind, folder in folders.items():
            asked = [python_of(ENVIRONMENT), str(MAKER), kind, str(flags.model.resolve())]
            subprocess.run([*asked, str(folder)], check=True)
        for name, (kind, ours, theirs, library) in KINDS.items():
            given = list(QUESTIONS)[: flags.texts] if ours == "penstock_queries" else texts
            row = _row(folders[kind], ours, theirs, given, flags.rounds)
            rows.append({"name": name, "library": library, **row})
            say(f"{name}: {row['ratio']:.2f} x, differs by {row['differs']:.1e}")
    return {"model": flags.model.name, "rounds": flags.rounds, "rows": rows, "note": flags.note}


def _row(folder: Path, ours: str, theirs: str, texts: list[str], rounds: int) -> Document:
    with ExitStack() as stack:
        both = [
            Library(name, folder, usable_threads(), environment=ENVIRONMENT)
            for name in (ours, theirs)
        ]
        for each in both:
            stack.enter_context(each)
            each.embed(texts[:8])  # Whatever is made at the first call.
        for _ in range(rounds):
            for each in both:
                each.rates.append(len(texts) / each.embed(texts))
        rates = [statistics.median(each.rates) for each in both]
        return {
            "texts": len(texts),
            "rates": [each.rates for each in both],
            "medians": rates,
            "ratio": rates[0] / rates[1],
            "differs": _difference(both[0].arrays, both[1].arrays),
            "versions": both[1].versions,
        }


def _difference(ours: list[np.ndarray], theirs: list[np.ndarray]) -> float:
    """The largest of two numbers in the same place; infinite where there are others."""
    if any(one.shape != other.shape for one, other in zip(ours, theirs, strict=True)):
        return float("inf")
    return max(float(np.abs(one - other).max()) for one, other in zip(ours, theirs, strict=True))


def faults(document: Document) -> list[str]:
    """What isn't as it should be."""
    return [
        f"{row['name']}: numbers differ by {row['differs']:.1e}"
        for row in document["rows"]
        if not row["differs"] <= CLOSE
    ]


COLUMNS = {
    "numbers": "{name}",
    "makers' library": "{library}",
    "texts": "{texts}",
    "texts/s": "{medians[0]:.1f}",
    "its texts/s": "{medians[1]:.1f}",
    "beside it": "{ratio:.2f} ×",
    "numbers differ from its by at most": "{differs:.0e}",
    "versions": "{said}",
}


def markdown(document: Document) -> str:
    rows = [
        {**row, "said": ", ".join(f"{name} {each}" for name, each in row["versions"].items())}
        for row in document["rows"]
    ]
    words = (
        f"The body of {document['model']}, with random layers behind it, in float32; medians of "
        f"{document['rounds']} rounds in turn:"
    )
    return sections(
        [machine_line(document), document["note"], f"{words}\n\n{table(COLUMNS, rows)}"]
    )


COMMAND = Measurement(
    "vectors_tokens",
    __doc__,
    measure,
    markdown,
    {
        "model": {"type": Path, "metavar": "FOLDER"},
        "--rounds": (5, "of both libraries"),
        "--texts": (32, "in a round"),
        "--note": ("", "what a reader has to know of this run"),
    },
    faults=faults,
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
