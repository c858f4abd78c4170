"""Seconds of a step: the limit, as it was, and as it is."""

from __future__ import annotations

from dataclasses import dataclass

from loadtest.gpu.cost import attention_flops
from loadtest.gpu.reckon.machine import H100, TAKEN
from loadtest.gpu.reckon.model import WIDTH, Shape
from penstock_kernels.triton.tiles import EXPERTS, KEY_SPLIT, attention_choice
from penstock_worker.forward.buckets import Bucket
from penstock_worker.quantisation.gguf.product import UNPACKED_ROWS

DECODE_SHARED = 72_192
"""Bytes of shared memory of a decode's attention program with heads of 128, as compiled for sm_90:
tests/kernels/triton/compile_for_hopper.py."""
UNPACKED_ROWS_BEFORE = 256
STAGES_BEFORE = 3  # of prefill attention


@dataclass(frozen=True)
class Step:
    """limit, before, now: seconds. eager: as before, without a graph."""

    limit: float
    before: float
    now: float
    eager: float

    @property
    def share(self) -> float:
        """Of the limit."""
        return self.limit / self.now


def decode(shape: Shape, contexts: list[int], bucket: Bucket) -> Step:
    """One more token of sequences with so many in the cache, the new one's included. bucket: to
    which the step is padded."""
    rows = len(contexts)
    keys = shape.layers * sum(contexts) * shape.kv_bytes / H100.memory
    _, idle = idle_programs(shape, contexts, bucket)
    before, now = (
        shape.layers * _attention(shape, contexts, programs)
        + _rows(shape, rows)
        + _products(shape, rows, unpacked=rows >= limit)
        for limit, programs in ((UNPACKED_ROWS_BEFORE, idle), (UNPACKED_ROWS, 0))
    )
    return Step(
        limit=_least(shape, rows) + keys,
        before=max(before, TAKEN.replay),
        now=max(now, TAKEN.replay),
        eager=max(before, shape.kernels * TAKEN.launch + TAKEN.replay),
    )


def prefill(shape: Shape, tokens: int) -> Step:
    """A prompt in one step; the head for its last token."""
    attention = shape.layers * attention_flops(shape.heads, shape.head_dim, 0, tokens)
    stages = attention_choice(shape.head_dim).many.stages
    around = _products(shape, tokens, head_rows=1) + _rows(shape, tokens)
    before, now = (
        around + attention / (_reached(each) * H100.matrix) for each in (STAGES_BEFORE, stages)
    )
    least = _least(shape, tokens, head_rows=1) + attention / H100.matrix
    return Step(least, before, now, max(before, shape.kernels * TAKEN.launch))


def idle_programs(shape: Shape, contexts: list[int], bucket: Bucket) -> tuple[int, int]:
    """Programs of a layer's decode attention as there were, before they went through a list: all,
    and those without work."""
    splits = -(-bucket.context // KEY_SPLIT)
    every = bucket.sequences * shape.kv_heads * splits
    busy = shape.kv_heads * sum(-(-context // KEY_SPLIT) for context in contexts)
    return every, every - busy


def tiles_in_flight(stages: int) -> int:
    """Of attention: a load of keys waits for a load of the block table, and each of the two takes
    up stages."""
    return (stages - 1) // 2


def _least(shape: Shape, rows: int, head_rows: int | None = None) -> float:
    """Seconds of all products at the limit."""
    total = 0.0
    for inputs, outputs in shape.dense:
        weights = inputs * outputs
        total += H100.least(weights * shape.weight_bytes, 2 * rows * weights)
    total += H100.least(_expert_bytes(shape, rows), shape.expert_operations(rows))
    return shape.layers * total + H100.least(shape.head_bytes, _head(shape, rows, head_rows))


def _products(
    shape: Shape, rows: int, *, unpacked: bool = False, head_rows: int | None = None
) -> float:
    """Seconds of all products. unpacked: quantised weights are."""
    packed = shape.weight_bytes != WIDTH and not unpacked
    rate = (TAKEN.packed if packed else TAKEN.products) * H100.matrix
    total = 0.0
    for inputs, outputs in shape.dense:
        weights = inputs * outputs
        size = weights * shape.weight_bytes + WIDTH * rows * (inputs + outputs)
        total += max(TAKEN.reading(H100, size), 2 * rows * weights / rate)
        if unpacked and shape.weight_bytes != WIDTH:
            total += TAKEN.reading(H100, 2 * WIDTH * weights)  # Written, and read again.
    total += max(
        TAKEN.reading(H100, _expert_bytes(shape, rows)),
        shape.expert_operations(rows) / TAKEN.tiled(H100, EXPERTS.rows),
    )
    head = _head(shape, rows, head_rows) / (TAKEN.products * H100.matrix)
    return shape.layers * total + max(TAKEN.reading(H100, shape.head_bytes), head)


def _expert_bytes(shape: Shape, rows: int) -> float:
    """Of a layer's experts that so many rows meet."""
    met = 0.0 if shape.experts is None else shape.experts.met(rows)
    return WIDTH * shape.expert_weights(met)


def _head(shape: Shape, rows: int, head_rows: int | None) -> float:
    """Operations of the head."""
    return 2 * (rows if head_rows is None else head_rows) * shape.head_bytes / WIDTH


def _rows(shape: Shape, rows: int) -> float:
    """Seconds of a step's kernels that go row by row, and of the gaps between all kernels."""
    small = shape.triton_kernels - 1  # All but attention.
    moved = TAKEN.reading(H100, rows * shape.row_bytes)
    return shape.layers * max(small * TAKEN.row_kernel, moved) + shape.kernels * TAKEN.gap


def _attention(shape: Shape, contexts: list[int], idle: int) -> float:
    """Of a layer: keys and values are read, and programs without work take places meanwhile."""
    places = H100.processors * (H100.shared // DECODE_SHARED)
    reading = TAKEN.reading(H100, sum(contexts) * shape.kv_bytes)
    return reading + idle * TAKEN.idle_program / places


def _reached(stages: int) -> float:
    """Of the matrix rate, by attention."""
    return TAKEN.two_tiles if tiles_in_flight(stages) >= 2 else TAKEN.one_tile
