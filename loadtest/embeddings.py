"""How fast are embeddings on the CPU? `python -m loadtest.embeddings --help`.

all-MiniLM-L6-v2 by the CPU kernels, by the reference kernels, and by sentence-transformers where
that can be imported: inputs of one length, so that nobody pays for padding, taken in turns, one
thread each, by processor time.  The best of the rounds counts: whatever else the machine does only
adds to it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from loadtest.report import Document, Flags, Measurement, machine_line, markdown_table, say
from penstock.prepare import load_manifest, prepare
from penstock.protocol.common import Pooling
from tests.worker.pooling.pooling_models import load_pooling, random_inputs, run

MODEL = "all-minilm-l6-v2"
SHAPES = ((8, 64), (32, 32), (128, 16), (256, 8))
"""Tokens of an input, and how many of them."""

Embed = Callable[[list[list[int]]], Any]


def measure(flags: Flags) -> Document:
    with tempfile.TemporaryDirectory() as folder:
        return {"model": MODEL, "rows": speeds(Path(folder), flags.rounds)}


def speeds(cache: Path, rounds: int) -> list[dict[str, Any]]:
    """Tokens per second of processor time, by shape and by who computes."""
    torch.set_num_threads(1)
    ways = {name: _ours(name, cache) for name in ("cpu", "reference")}
    theirs = _sentence_transformers(cache)
    if theirs is not None:
        ways["sentence-transformers"] = theirs
    rows = []
    for length, count in SHAPES:
        say(f"{count} inputs of {length} tokens")
        inputs = random_inputs([length] * count, vocab=30_000)
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(rounds + 1):  # The first is a trial, which is never the best.
            for name, embed in ways.items():
                begun = time.process_time()
                embed(inputs)
                best[name] = min(best[name], time.process_time() - begun)
        rates = {name: round(length * count / seconds) for name, seconds in best.items()}
        rows.append({"tokens": length, "inputs": count, "speeds": rates})
    return rows


def _ours(backend: str, cache: Path) -> Embed:
    loaded = load_pooling(MODEL, cache, threads=1, worker={"attention_backend": backend})
    return lambda inputs: run(loaded, inputs, Pooling("embed"))


def _sentence_transformers(cache: Path) -> Embed | None:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        say(f"without sentence-transformers: {error}")
        return None
    (file,) = load_manifest(prepare(MODEL, cache_dir=str(cache))).weights.files
    model = SentenceTransformer(str(Path(file).parent), device="cpu")

    def embed(inputs: list[list[int]]) -> None:
        ids = torch.tensor(inputs)
        with torch.inference_mode():
            model({"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    return embed


def to_markdown(document: Document) -> str:
    names = list(document["rows"][0]["speeds"])
    rows = [
        [f"{row['inputs']} × {row['tokens']}", *(f"{row['speeds'][name]:,}" for name in names)]
        for row in document["rows"]
    ]
    return (
        f"{document['model']}, tokens per second of one thread's processor time.\n\n"
        + markdown_table(["inputs × tokens", *names], rows)
        + f"\n\n{machine_line(document)}\n"
    )


COMMAND = Measurement("embeddings", __doc__, measure, to_markdown, {"--rounds": (7, "")})

if __name__ == "__main__":
    sys.exit(COMMAND.main())
