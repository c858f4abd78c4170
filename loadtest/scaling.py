"""Time per step and memory against batch, context and threads, on the CPU kernels:
`python -m loadtest.scaling --help`.

The worker's own forward pass gets batches made by hand; there is no engine and no sampler. Every
page of the KV cache that a step reads has been written by a step before, so that it is real memory.
Curves go to a JSON file, a Markdown table and PNG charts. About two minutes on two cores.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the worker has it

import numpy as np
import psutil

from loadtest.peers.servers import default_model
from loadtest.report import Document, Flags, Measurement, chart, machine_line, markdown_table, say
from penstock.prepare import load_manifest, prepare
from penstock.process.machine import usable_cores
from penstock_worker.forward.interface import Batch, Forward, Recipe
from testing.forward_pass import BLOCK, blocks_of, recipe_of, sequences_of

CHUNK = 2048
"""Rows of a step that fills the cache."""


@dataclass(frozen=True)
class Extent:
    """What is measured."""

    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    contexts: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096, 8064)
    base: int = 128  # tokens of each sequence's context on the batch curve
    streams: int = 4  # of the second context curve
    seconds: float = 0.6  # that each point gets, about

    @property
    def blocks(self) -> int:
        tokens = max(self.batches[-1] * (self.base + BLOCK), self.streams * self.contexts[-1])
        return blocks_of(tokens) + self.streams


SMOKE = Extent(batches=(1, 2, 4), contexts=(32, 64), base=32, streams=2, seconds=0.02)


@dataclass
class Curves:
    """Points as [x, y]."""

    batch: dict[str, list[list[float]]]  # milliseconds of a step against sequences, by threads
    context: dict[str, list[list[float]]]  # the same against the tokens of each sequence
    memory_requests: list[list[float]]  # MiB that the process grew by, against requests
    memory_context: list[list[float]]  # against the tokens of one request
    kv_bytes: float = 0.0  # of one token, by the cache's shape


def measure(flags: Flags) -> Document:
    """With all threads, then with one."""
    extent, curves = SMOKE if flags.smoke else Extent(), Curves({}, {}, [], [])
    model = default_model()
    folder = prepare(str(model))
    for threads in sorted({1, max(int(usable_cores()), 1)}, reverse=True):
        add_curves(curves, extent, recipe_for(folder, extent, threads), threads)
    return {"model": model.name, "extent": asdict(extent), "curves": asdict(curves)}


def recipe_for(folder: Path, extent: Extent, threads: int) -> Recipe:
    context = blocks_of(extent.contexts[-1] + BLOCK) * BLOCK
    sizes = {"sequences": extent.batches[-1], "step_tokens": CHUNK, "context": context}
    return recipe_of(load_manifest(folder), threads, num_kv_blocks=extent.blocks, **sizes)


def add_curves(curves: Curves, extent: Extent, recipe: Recipe, threads: int) -> None:
    """Adds what this number of threads gives. Memory is measured with the first number only."""
    make = recipe.build()
    curves.kv_bytes = recipe.block_bytes / BLOCK
    name = f"{threads} thread{'s' if threads > 1 else ''}"
    if not curves.memory_context:
        # Two pools over the same weights: memory is given when it is written, and kept.
        curves.memory_context = _growth(make(extent.blocks), extent, _one_request(extent))
        gc.collect()
    forward = make(extent.blocks)
    requests = _growth(forward, extent, _many_requests(extent))  # which fills the pool as well
    curves.memory_requests = curves.memory_requests or requests
    curves.batch[f"{name}, context {extent.base}"] = [
        [batch, _step_ms(forward, batch, extent.base, extent.seconds)] for batch in extent.batches
    ]
    for streams in (1, extent.streams):
        curves.context[f"{name}, batch {streams}"] = [
            [context, _step_ms(forward, streams, context, extent.seconds)]
            for context in extent.contexts
        ]


def _sequences(count: int, start: int, rows: int, first_block: int = 0) -> Batch:
    """`count` sequences with `start` tokens computed and `rows` to compute, each in blocks of its
    own from first_block on."""
    tokens = np.random.default_rng(start).integers(1000, 40_000, count * rows)
    return sequences_of(tokens, count, start, first_block=first_block)


def _step_ms(forward: Forward, batch: int, context: int, seconds: float) -> float:
    """Median milliseconds of a decode step, logits of every sequence included."""
    work, rows = _sequences(batch, context - 1, 1), np.arange(batch)
    forward.logits(work, rows)
    times: list[float] = []
    while len(times) < 5 or (sum(times) < seconds and len(times) < 200):
        begun = time.perf_counter()
        forward.logits(work, rows)
        times.append(time.perf_counter() - begun)
    median = 1e3 * statistics.median(times)
    say(f"batch {batch}, context {context}: {median:.2f} ms a step")
    return median


Prefills = Iterable[tuple[int, list[Batch]]]
"""A number, and the batches that lead up to it from the one before."""


def _one_request(extent: Extent) -> Prefills:
    """Batches by the tokens of one request, computed in chunks."""
    for start, context in pairwise((0, *extent.contexts)):
        chunks = range(start, context, CHUNK)
        yield context, [_sequences(1, done, min(CHUNK, context - done)) for done in chunks]


def _many_requests(extent: Extent) -> Prefills:
    """Batches by the number of requests of extent.base tokens. Writes the whole pool in the end."""
    blocks, at_once = blocks_of(extent.base), max(CHUNK // extent.base, 1)
    for start, requests in pairwise((0, *extent.batches, extent.blocks // blocks)):
        batches = [
            _sequences(min(at_once, requests - done), 0, extent.base, done * blocks)
            for done in range(start, requests, at_once)
        ]
        yield requests, batches


def _growth(forward: Forward, extent: Extent, prefills: Prefills) -> list[list[float]]:
    """[number, MiB that this process has grown by, resident].

    A step with as many rows as any comes first, so that the scratch memory doesn't count: copies
    of one sequence, which all write the same to the pool's last block.
    """
    copies = CHUNK // BLOCK
    tokens = np.tile(np.arange(BLOCK) + 1000, copies)
    tables = [np.array([extent.blocks - 1])] * copies
    starts, counts = np.zeros(copies, dtype=np.int64), np.full(copies, BLOCK)
    forward.logits(Batch(tokens, tables, starts, counts), np.arange(copies) * BLOCK)
    process, points = psutil.Process(), []
    before = process.memory_info().rss
    for number, batches in prefills:
        for batch in batches:
            forward.logits(batch, np.cumsum(batch.counts) - 1)
        points.append([number, (process.memory_info().rss - before) / 2**20])
    return points


def to_markdown(document: Document) -> str:
    """Tables of the points."""
    curves, extent = Curves(**document["curves"]), Extent(**document["extent"])
    parts = [
        f"{machine_line(document)}; {document['model']}. Medians of at least 5 steps.\n",
        "Milliseconds of a decode step against the sequences in it:\n",
        _table("sequences", curves.batch),
        "Against the tokens of each sequence's context:\n",
        _table("context", curves.context),
        f"Memory that the worker grew by, MiB ({curves.kv_bytes:,.0f} bytes of keys and values a "
        "token by the cache's shape):\n",
        _table(f"requests of {extent.base} tokens", {"MiB": curves.memory_requests}),
        _table("tokens of one request", {"MiB": curves.memory_context}),
        steepest(curves),
    ]
    return "\n".join(parts).rstrip() + "\n"


def steepest(curves: Curves) -> str:
    """A sentence on the largest rise between neighbours: a cliff would be one beyond the rise of
    batch or context itself."""
    rises = [
        ((after[1] / before[1]) / (after[0] / before[0]), name, before[0], after[0])
        for name, points in {**curves.batch, **curves.context}.items()
        for before, after in pairwise(points)
    ]
    most, name, low, high = max(rises)
    return (
        f"Steepest between neighbours ({name}): from {low:,.0f} to {high:,.0f} the time grows by "
        f"{most:.2f} × as much as the work; beyond 1 would be a cliff."
    )


def _table(what: str, by_name: dict[str, list[list[float]]]) -> str:
    """A row for each x, a column for each curve. All have the same xs."""
    points = zip(*by_name.values(), strict=True)
    rows = [[f"{row[0][0]:,.0f}", *(f"{y:,.2f}" for _, y in row)] for row in points]
    return markdown_table([what, *by_name], rows)


def draw(path: Path, document: Document) -> None:
    """Four panels."""
    curves, extent = Curves(**document["curves"]), Extent(**document["extent"])
    token = curves.kv_bytes / 2**20
    requests = f"requests of {extent.base} tokens"
    with chart(path, columns=2, rows=2, size=(10, 7)) as (above, below):
        _panel(above[0], curves.batch, "sequences in the step", "ms a step")
        _panel(above[1], curves.context, "tokens of context", "ms a step")
        _memory_panel(below[0], curves.memory_requests, requests, extent.base * token)
        _memory_panel(below[1], curves.memory_context, "tokens of one request", token)


def _memory_panel(panel: Any, points: list[list[float]], x: str, each: float) -> None:
    """each: MiB of keys and values, by the cache's shape."""
    by_shape = [[n, n * each] for n, _ in points]
    _panel(panel, {"process grew by": points, "keys and values": by_shape}, x, "MiB")


def _panel(panel: Any, curves: dict[str, list[list[float]]], x: str, y: str) -> None:
    """Both axes logarithmic: a straight line of slope 1 is proportional."""
    for name, points in curves.items():
        panel.plot([p[0] for p in points], [p[1] for p in points], "o-", markersize=3, label=name)
    panel.set_xscale("log", base=2)
    panel.set(yscale="log", xlabel=x, ylabel=y)
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)


COMMAND = Measurement(
    "scaling", __doc__, measure, to_markdown, {"--smoke": (False, "a few small points")}, draw=draw
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
