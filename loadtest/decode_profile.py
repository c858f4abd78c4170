"""Where a decode step's time goes, on each instruction set of the CPU kernels.

    python -m loadtest.decode_profile                        # some two minutes
    python -m loadtest.decode_profile --streams 1,8,64 --isa avx512,avx2 --output FOLDER

The kernels alone: the clock of each phase (Decoder.watch), of greedy sequences. The whole
system: the library with its engine core and worker. What that takes more is plans, messages and
Python, and threads that wait for a processor. Of repeated steps the lower quartile is shown.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # As the worker has it.

import numpy as np
import torch

from loadtest.forward_pass import BLOCK, blocks_of, recipe_of, sequences_of
from loadtest.peers.servers import default_model
from loadtest.report import Document, Flags, Measurement, machine_line, say
from loadtest.report.table import sections
from penstock import LLM, SamplingParams
from penstock.bench.load.report import markdown_table
from penstock.prepare import load_manifest, prepare
from penstock.process.machine import usable_cores
from penstock_kernels.cpu import library
from penstock_kernels.cpu.matrix import PackedMatrix
from penstock_kernels.cpu.program import Phase, PhaseKind
from penstock_worker.forward.cpu.forward import CPUForward
from penstock_worker.forward.interface import Batch

CONTEXT = 128
"""Tokens of a sequence before the first step that counts."""
STEPS = 40
ROOM = CONTEXT + STEPS + 1
SYSTEM = "the whole system"
NAMES = {
    "EMBED RESIDUAL": "embedding",
    "MAKE_INPUT RESIDUAL": "norms, and the inputs of products",
    "HEADS INPUT": "queries, keys, values",
    "ATTEND QUERIES": "attention",
    "MAKE_INPUT MIXED": "attention's result as an input",
    "PRODUCT INPUT": "product: attention's output",
    "GATE_UP INPUT": "products: gate and up, activation",
    "PRODUCT INNER": "product: down",
    "LOGITS RESIDUAL": "product: head, and the likeliest token",
}
"""What a phase is called, by its kind and what it reads."""


def measure(flags: Flags) -> Document:
    folder = prepare(str(default_model()))
    threads = max(int(usable_cores()), 1)
    cases = []
    for name in flags.isa:
        library.use(name)
        for streams in flags.streams:
            say(f"decode_profile: {name}, {streams} streams")
            alone = Alone(folder, streams, threads)
            parts = alone.run(STEPS if streams < 64 else STEPS // 2)
            system = None if flags.alone else in_system(name, streams, threads)
            cases.append({"isa": name, "streams": streams, "parts": parts, "system": system})
    return {"model": default_model().name, "threads": threads, "cases": cases}


class Alone:
    """The kernels without the processes around them."""

    def __init__(self, folder: Path, streams: int, threads: int) -> None:
        self._streams, self._threads = streams, threads
        blocks = streams * blocks_of(ROOM)
        self._forward = forward_of(folder, threads, sequences=streams, blocks=blocks, tokens=512)

    @property
    def phases(self) -> tuple[Phase, ...]:
        return self._forward.decoder.program.phases

    def run(self, steps: int) -> list[dict[str, object]]:
        """Parts of a step: name, seconds, seconds waited, bytes of weights."""
        return by_part(self.phases, self.quartile(steps))

    def quartile(self, steps: int) -> np.ndarray:
        """[phases, 2] seconds, computed and waited: the lower quartile of steps."""
        ticks = self._forward.decoder.watch()
        phases = []
        for step in range(steps):
            ticks[:] = 0
            self._forward.likeliest(self._batch(step), np.arange(self._streams))
            phases.append(ticks.copy())
        each = np.array(phases).mean(axis=1) / 1e9  # Of all threads.
        return np.asarray(np.quantile(each, 0.25, axis=0))

    def _batch(self, step: int) -> Batch:
        tokens = np.random.default_rng(step).integers(0, 40_000, self._streams)
        return sequences_of(tokens, self._streams, CONTEXT + step, room=ROOM)


def forward_of(
    folder: Path, threads: int, *, sequences: int, blocks: int, tokens: int
) -> CPUForward:
    """A model's forward pass without the processes around it, in steps of at most `tokens`."""
    sizes = {"sequences": sequences, "step_tokens": tokens, "context": blocks * BLOCK}
    recipe = recipe_of(load_manifest(folder), threads, num_kv_blocks=blocks, **sizes)
    with torch.inference_mode():
        forward = recipe.build()(blocks)
    if not isinstance(forward, CPUForward):
        raise TypeError(f"{type(forward).__name__} has no phases")
    return forward


def by_part(phases: tuple[Phase, ...], seconds: np.ndarray) -> list[dict[str, object]]:
    """Adds up phases of a name. seconds: [phases, 2], computed and waited. Of products, also the
    weights' bytes, and the multiply-adds of a row."""
    names: dict[str, list[int]] = {}
    for number, phase in enumerate(phases):
        own = f"{phase.kind.name} {phase.source.name}"
        names.setdefault(NAMES.get(own, own), []).append(number)
    return [
        {
            "name": name,
            "seconds": float(seconds[numbers, 0].sum()),
            "waited": float(seconds[numbers, 1].sum()),
            "bytes": sum(weight_bytes(phases[n]) for n in numbers),
            "macs": sum(_macs(phases[n]) for n in numbers),
        }
        for name, numbers in names.items()
    ]


def multiplied(phase: Phase) -> list[PackedMatrix]:
    """The matrices that a phase multiplies: an embedding is looked up."""
    if phase.kind is PhaseKind.EMBED:
        return []
    return [matrix for matrix in phase.matrices if matrix is not None]


def weight_bytes(phase: Phase) -> int:
    """Of the weights that it reads."""
    return sum(matrix.size for matrix in multiplied(phase))


def _macs(phase: Phase) -> int:
    matrices = [matrix.struct for matrix in multiplied(phase)]
    return sum(matrix.outputs * matrix.inputs for matrix in matrices)


def in_system(isa: str, streams: int, threads: int) -> float:
    """Seconds of a step in the whole system: of what a long answer takes longer than a short one to
    prompts that are in the cache already."""
    short, long = 8, 8 + (96 if streams == 1 else 32)
    ids = np.random.default_rng(1).integers(0, 40_000, (streams, CONTEXT)).tolist()
    given = [{"prompt_token_ids": each} for each in ids]
    with chosen(isa), LLM(model=str(default_model()), threads=threads, max_model_len=512) as llm:

        def seconds(count: int) -> float:
            params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
            begun = time.perf_counter()
            llm.generate(given, params, use_tqdm=False)
            return time.perf_counter() - begun

        seconds(1)
        taken = [(seconds(short), seconds(long)) for _ in range(3)]
    shorts, longs = zip(*taken, strict=True)
    return (min(longs) - min(shorts)) / (long - short)


@contextmanager
def chosen(isa: str) -> Iterator[None]:
    """Processes started meanwhile use the instruction set."""
    before = os.environ.get(library.CHOICE)
    os.environ[library.CHOICE] = isa
    try:
        yield
    finally:
        if before is None:
            del os.environ[library.CHOICE]
        else:
            os.environ[library.CHOICE] = before


def markdown(document: Document) -> str:
    parts = [
        f"{machine_line(document)}; {document['model']}, {document['threads']} threads. "
        f"Milliseconds of a decode step at {CONTEXT} tokens of context; of products, the weights' "
        "GB/s in brackets."
    ]
    for isa, cases in by_isa(document):
        waited = [sum(part["waited"] for part in case["parts"]) for case in cases]
        foot = {"waiting for each other": map(_ms, waited)}
        foot["**kernels alone**"] = map(_ms, map(_alone, cases))
        if all(case["system"] is not None for case in cases):
            foot[f"**{SYSTEM}**"] = (_ms(case["system"]) for case in cases)
        parts.append(
            parts_table(isa, cases, [_streams(each["streams"]) for each in cases], _cell, foot)
        )
    return sections(parts)


def by_isa(document: Document) -> Iterator[tuple[str, list[Document]]]:
    """Each instruction set with its cases."""
    for isa in dict.fromkeys(case["isa"] for case in document["cases"]):
        yield isa, [case for case in document["cases"] if case["isa"] == isa]


def parts_table(
    isa: str,
    cases: list[Document],
    heads: list[str],
    cell: Callable[[Document], str],
    foot: Mapping[str, Iterable[str]],
) -> str:
    """A row for each part of a step, a column for each case. foot: further rows, by their names."""
    rows = [
        [part["name"], *(cell(case["parts"][at]) for case in cases)]
        for at, part in enumerate(cases[0]["parts"])
    ]
    return markdown_table([isa, *heads], [*rows, *([name, *row] for name, row in foot.items())])


def _streams(count: int) -> str:
    return "1 stream" if count == 1 else f"{count} streams"


def _alone(case: Document) -> float:
    return float(sum(part["seconds"] + part["waited"] for part in case["parts"]))


def _cell(part: Document) -> str:
    if not part["bytes"] or not part["seconds"]:
        return _ms(part["seconds"])
    return f"{_ms(part['seconds'])} ({part['bytes'] / part['seconds'] / 1e9:.0f})"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def names(text: str) -> list[str]:
    return text.split(",")


FLAGS = {
    "--streams": {"type": numbers, "default": [1, 8, 64], "help": "of each case"},
    "--isa": {"type": names, "default": ["avx512", "avx2"], "help": "instruction sets"},
    "--alone": (False, "not the whole system"),
}
COMMAND = Measurement("decode_profile", __doc__, measure, markdown, FLAGS)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
