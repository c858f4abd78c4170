"""Time per step and memory of the CPU kernels' forward pass, by batches made by hand."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadtest.report.files import say
from penstock.prepare import load_manifest
from penstock.protocol.to_worker import Setup
from penstock_worker.forward.backends import choose
from penstock_worker.forward.interface import Batch, Forward, Recipe

BLOCK = 16
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
        return -(-tokens // BLOCK) + self.streams


SMOKE = Extent(batches=(1, 2, 4), contexts=(32, 64), base=32, streams=2, seconds=0.02)


@dataclass
class Curves:
    """Points as [x, y]."""

    batch: dict[str, list[list[float]]]  # milliseconds of a step against sequences, by threads
    context: dict[str, list[list[float]]]  # the same against the tokens of each sequence
    memory_requests: list[list[float]]  # MiB that the process grew by, against requests
    memory_context: list[list[float]]  # against the tokens of one request
    kv_bytes: float = 0.0  # of one token, by the cache's shape


def recipe_for(folder: Path, extent: Extent, threads: int) -> Recipe:
    setup = Setup(
        version=1,
        model_dir=str(folder),
        dtype="auto",
        attention_backend="cpu",
        threads=threads,
        block_size=BLOCK,
        num_kv_blocks=extent.blocks,
        kv_memory_fraction=0.4,
        max_num_seqs=extent.batches[-1],
        max_num_batched_tokens=CHUNK,
        max_model_len=-(-(extent.contexts[-1] + BLOCK) // BLOCK) * BLOCK,
    )
    return choose(load_manifest(folder), setup, threads)


def measure(curves: Curves, extent: Extent, recipe: Recipe, threads: int) -> Iterator[None]:
    """Adds what this number of threads gives, and yields after each curve."""
    make = recipe.build()
    curves.kv_bytes = recipe.block_bytes / BLOCK
    name = f"{threads} thread{'s' if threads > 1 else ''}"
    if not curves.memory_context:
        # Two pools over the same weights: memory is given when it is written, and kept.
        curves.memory_context.extend(_memory_of_one(make(extent.blocks), extent))
        gc.collect()
        yield
    forward = make(extent.blocks)
    requests = _memory_of_many(forward, extent)  # which fills the pool as well
    if not curves.memory_requests:
        curves.memory_requests.extend(requests)
    yield
    points = curves.batch.setdefault(f"{name}, context {extent.base}", [])
    for batch in extent.batches:
        points.append([batch, _step_ms(forward, batch, extent.base, extent.seconds)])
        say(f"{name}, batch {batch}: {points[-1][1]:.2f} ms a step")
    yield
    for streams in (1, extent.streams):
        points = curves.context.setdefault(f"{name}, batch {streams}", [])
        for context in extent.contexts:
            points.append([context, _step_ms(forward, streams, context, extent.seconds)])
            say(f"{name}, batch {streams}, context {context}: {points[-1][1]:.2f} ms a step")
        yield


def _sequences(count: int, start: int, rows: int, first_block: int = 0) -> Batch:
    """`count` sequences with `start` tokens computed and `rows` to compute, each in blocks of its
    own from first_block on."""
    each = -(-(start + rows) // BLOCK)
    blocks = first_block + np.arange(count * each).reshape(count, each)
    return Batch(
        tokens=np.random.default_rng(start).integers(1000, 40_000, count * rows),
        tables=list(blocks),
        starts=np.full(count, start),
        counts=np.full(count, rows),
    )


def _step_ms(forward: Forward, batch: int, context: int, seconds: float) -> float:
    """Median milliseconds of a decode step, logits of every sequence included."""
    work, rows = _sequences(batch, context - 1, 1), np.arange(batch)
    forward.logits(work, rows)
    times: list[float] = []
    while len(times) < 5 or (sum(times) < seconds and len(times) < 200):
        begun = time.perf_counter()
        forward.logits(work, rows)
        times.append(time.perf_counter() - begun)
    return 1e3 * statistics.median(times)


def _memory_of_one(forward: Forward, extent: Extent) -> list[list[float]]:
    """[tokens of one request, MiB that it took], by a prefill in chunks."""
    points: list[list[float]] = []
    grown, done = _growth(forward, extent), 0
    for context in extent.contexts:
        while done < context:
            rows = min(CHUNK, context - done)
            forward.logits(_sequences(1, done, rows), np.array([rows - 1]))
            done += rows
        points.append([context, grown()])
        say(f"one request of {context} tokens: {points[-1][1]:.1f} MiB")
    return points


def _memory_of_many(forward: Forward, extent: Extent) -> list[list[float]]:
    """[requests of extent.base tokens, MiB that they took]. Writes the whole pool in the end."""
    points: list[list[float]] = []
    blocks, at_once = -(-extent.base // BLOCK), max(CHUNK // extent.base, 1)
    grown, done = _growth(forward, extent), 0
    for requests in (*extent.batches, extent.blocks // blocks):
        while done < requests:
            count = min(at_once, requests - done)
            batch = _sequences(count, 0, extent.base, first_block=done * blocks)
            forward.logits(batch, np.arange(1, count + 1) * extent.base - 1)
            done += count
        points.append([requests, grown()])
        say(f"{requests} requests of {extent.base} tokens: {points[-1][1]:.1f} MiB")
    return points


def _growth(forward: Forward, extent: Extent) -> Callable[[], float]:
    """A function that says how many MiB this process has grown by, resident, since now.

    A step with as many rows as any comes first, so that the scratch memory doesn't count: copies
    of one sequence, which all write the same to the pool's last block.
    """
    copies = CHUNK // BLOCK
    tokens = np.tile(np.arange(BLOCK) + 1000, copies)
    tables = [np.array([extent.blocks - 1])] * copies
    starts, counts = np.zeros(copies, dtype=np.int64), np.full(copies, BLOCK)
    forward.logits(Batch(tokens, tables, starts, counts), np.arange(copies) * BLOCK)
    before = _resident()
    return lambda: (_resident() - before) / 2**20


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
