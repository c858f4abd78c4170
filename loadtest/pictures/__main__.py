"""What pictures cost a server, what they cost those who show none, and what others take for them.

    bash loadtest/peers/install.sh xllamacpp       # once, for the last part
    python -m loadtest.pictures                    # all parts; some five minutes
    python -m loadtest.pictures --part trained     # one of them, the others as they were

Requests that all come at once, with one 448 × 448 picture each, a few of them distinct: how many
pictures are prepared and encoded, what is sent, when the first token comes. Streams of text alone,
and beside pictures that nobody has shown before. Preparing alone, with one process and with two.
And the same pictures to transformers and to llama.cpp's server; each run of that part is one more
round. Two models in LLaVA's shape: the tiny trained one, and a larger one with random weights,
which is also served with `--short-step-ms 10`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from loadtest.pictures.models import larger
from loadtest.pictures.peers import one_round
from loadtest.pictures.prepared import prepared_per_second
from loadtest.pictures.report import draw, markdown, moved_most
from loadtest.pictures.served import EVEN, Load, served
from loadtest.report import Document, Flags, Measurement, commit, say
from testing.trained.seeing import FOLDER

ALLOWED = 0.005
"""Seconds that the p99 of the streams' gaps may move by."""
MODELS: dict[str, tuple[str, tuple[str, ...]]] = {
    "trained": ("trained, 0.3 M", ()),
    "random": ("random, 49 M", ()),
    "short-steps": ("the same, short steps", EVEN),
}
"""By part: what its rows are called, and further flags."""
PARTS = (*MODELS, "preparing", "peers")


def measure(flags: Flags) -> Document:
    """Raises SetupError."""
    kept: Document = {"rows": {}, "prepared": [], "peers": []}
    path = flags.output / "pictures.json"
    if flags.part and path.exists():
        kept |= {key: json.loads(path.read_text(encoding="utf-8"))[key] for key in kept}
    load = Load(flags.requests, flags.distinct, flags.seconds)
    with tempfile.TemporaryDirectory() as folder:
        for part in flags.part or PARTS:
            _measure(part, Path(folder) / part, load, kept)
    rows = kept["rows"]
    kept["rows"] = {name: rows[name] for name, _ in MODELS.values() if name in rows}
    return {**kept, "allowed": ALLOWED}


def _measure(part: str, folder: Path, load: Load, kept: dict[str, Any]) -> None:
    if part == "preparing":
        say("preparing alone")
        kept["prepared"] = prepared_per_second(FOLDER, load.distinct * 4)
    elif part == "peers":
        kept["peers"] = [*kept["peers"], one_round(larger(folder), load)]
    else:
        name, more = MODELS[part]
        path = FOLDER if part == "trained" else larger(folder)
        kept["rows"][name] = {"commit": commit(), **served(name, path, more, load)}


def faults(document: Document) -> bool:
    """Whether a picture was prepared or encoded twice, or streams of text were slowed too much."""
    rows = [row["first"] for row in document["rows"].values()]
    twice = any(row[key] != row["distinct"] for row in rows for key in ("prepared", "encoded"))
    return twice or moved_most(document) > ALLOWED


OPTIONS = {
    "--requests": (64, "with a picture each, all at once"),
    "--distinct": (16, "pictures among them"),
    "--seconds": (30.0, "of text streams, each way"),
    "--part": {"action": "append", "choices": PARTS, "help": "only this one; may come again"},
}
COMMAND = Measurement("pictures", __doc__, measure, markdown, OPTIONS, faults=faults, draw=draw)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
