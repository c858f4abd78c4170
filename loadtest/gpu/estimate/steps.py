"""Seconds of a step: the limit, as it was, and as it is."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loadtest.gpu.cost import attention_flops
from loadtest.gpu.estimate.machine import H100, TAKEN
from loadtest.gpu.estimate.model import WIDTH, Shape
from penstock_kernels.triton.matmul_tiles import (
    EXPERTS,
    EXPERTS_FP8,
    EXPERTS_MANY,
    INVARIANT,
    MatmulTiles,
    busy,
    cache_cost,
    expert_tiles,
    invariant_tiles,
)
from penstock_kernels.triton.tiles import KEY_SPLIT, attention_choice
from penstock_worker.forward.buckets import Bucket
from penstock_worker.forward.mixed_buckets import MIXED_ROWS
from penstock_worker.quantisation.gguf.product import UNPACKED_ROWS

DECODE_SHARED = 71_712
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
        """The limit's share of the time that is estimated now."""
        return self.limit / self.now


def decode(shape: Shape, contexts: list[int], bucket: Bucket) -> Step:
    """One more token of sequences with so many in the cache, the new one's included. bucket: to
    which the step is padded."""
    rows = len(contexts)
    keys = shape.layers * sum(contexts) * shape.kv_bytes / H100.memory
    _, idle = idle_programs(shape, contexts, bucket)
    before, now = (
        shape.layers * _attention(shape, contexts, programs)
        + _rows(shape, rows, bool(now))
        + _products(shape, rows, bool(now), unpacked=rows >= limit)
        for now, limit, programs in ((0, UNPACKED_ROWS_BEFORE, idle), (1, UNPACKED_ROWS, 0))
    )
    return Step(
        limit=_least(shape, rows) + keys,
        before=max(before, TAKEN.replay),
        now=max(now, TAKEN.replay),
        eager=max(before, shape.kernels * TAKEN.launch + TAKEN.replay),
    )


def mixed(shape: Shape, contexts: list[int], prompt: int) -> Step:
    """A decode of sequences with so many tokens, and a short prompt. It was launched kernel by
    kernel; now it is a graph, padded to its rows."""
    sampled, rows = len(contexts) + 1, len(contexts) + prompt
    padded = next(each for each in MIXED_ROWS if each >= rows)
    operations = shape.layers * attention_flops(shape.heads, shape.head_dim, 0, prompt)
    keys = shape.layers * sum(contexts) * shape.kv_bytes / H100.memory
    before, now = (
        shape.layers * _attention(shape, contexts, 0)
        + operations / (TAKEN.two_tiles * H100.matrix)
        + _rows(shape, of_step, bool(now))
        + _products(shape, of_step, bool(now), head_rows=sampled)
        for now, of_step in enumerate((rows, padded))
    )
    least = _least(shape, rows, head_rows=sampled) + keys + operations / H100.matrix
    eager = max(before, shape.kernels * TAKEN.launch + TAKEN.replay)
    return Step(least, eager, max(now, TAKEN.replay), eager)


def prefill(shape: Shape, tokens: int) -> Step:
    """A prompt in one step; the head for its last token."""
    attention = shape.layers * attention_flops(shape.heads, shape.head_dim, 0, tokens)
    stages = attention_choice(shape.head_dim).many.stages
    before, now = (
        _products(shape, tokens, bool(now), head_rows=1)
        + _rows(shape, tokens, bool(now))
        + _multiplied(shape, tokens) / (_reached(each) * H100.matrix)
        for now, each in enumerate((STAGES_BEFORE, stages))
    )
    least = _least(shape, tokens, head_rows=1) + attention / H100.matrix
    return Step(least, before, now, max(before, shape.kernels * TAKEN.launch))


def prefill_shares(shape: Shape, tokens: int) -> tuple[float, float]:
    """The shares of a prompt's limit with the least and with the most that is assumed of attention
    and the library's products."""
    step, attention = prefill(shape, tokens), _multiplied(shape, tokens) / H100.matrix
    products = _products(shape, tokens, now=True, head_rows=1)
    fixed = step.now - attention / TAKEN.two_tiles - products
    slow = fixed + attention / TAKEN.two_tiles_least
    slow += products * TAKEN.products / TAKEN.products_least
    return step.limit / slow, step.limit / (fixed + products + attention / TAKEN.two_tiles_most)


def _multiplied(shape: Shape, tokens: int) -> float:
    """Operations of a prompt's attention in whole tiles of keys: of a tile's last one, half is
    masked."""
    pairs = tokens * (tokens + attention_choice(shape.head_dim).many.keys) / 2
    return 4 * shape.layers * shape.heads * shape.head_dim * pairs


def idle_programs(shape: Shape, contexts: list[int], bucket: Bucket) -> tuple[int, int]:
    """Programs of a layer's decode attention as there were, before they went through a list: all,
    and those without work."""
    splits = -(-bucket.context // KEY_SPLIT)
    every = bucket.sequences * shape.kv_heads * splits
    busy = shape.kv_heads * sum(-(-context // KEY_SPLIT) for context in contexts)
    return every, every - busy


def smaller_splits(shape: Shape, contexts: list[int], split: int) -> tuple[float, float]:
    """Seconds of a decode's attention that splits of so many keys, not KEY_SPLIT, would save
    because more processors read, and those that more partial results would take."""
    size = sum(contexts) * shape.kv_bytes
    many, few = (
        sum(-(-context // each) for context in contexts) * shape.kv_heads
        for each in (split, KEY_SPLIT)
    )
    saved = TAKEN.reading(H100, size, few) - TAKEN.reading(H100, size, many)
    # Each head's weighted values, largest score and sum, float32, written and read.
    partial = 2 * 4 * (shape.heads // shape.kv_heads) * (shape.head_dim + 2)
    taken = TAKEN.reading(H100, (many - few) * partial)
    return shape.layers * saved, shape.layers * taken


def tiles_in_flight(stages: int) -> int:
    """How many tiles of keys attention has in flight: a load of keys waits for a load of the block
    table, and each of the two takes up stages."""
    return (stages - 1) // 2


def _least(shape: Shape, rows: int, head_rows: int | None = None) -> float:
    """Seconds of all products at the limit."""
    total = 0.0
    for inputs, outputs in shape.dense:
        weights = inputs * outputs
        total += H100.least(weights * shape.weight_bytes, 2 * rows * weights)
    experts = shape.weight_bytes * _met_weights(shape, rows)
    total += H100.least(experts, shape.expert_operations(rows))
    return shape.layers * total + H100.least(shape.head_bytes, _head(shape, rows, head_rows))


def _products(
    shape: Shape, rows: int, now: bool, *, unpacked: bool = False, head_rows: int | None = None
) -> float:
    """Seconds of all products. unpacked: quantised weights are."""
    total = sum(_product(shape, rows, *each, now, unpacked=unpacked) for each in shape.dense)
    at_head = rows if head_rows is None else head_rows
    head = _product(replace(shape, weight_bytes=WIDTH), at_head, shape.hidden, shape.vocab, now)
    return shape.layers * (total + _experts(shape, rows, now)) + head


def _product(
    shape: Shape, rows: int, inputs: int, outputs: int, now: bool, *, unpacked: bool = False
) -> float:
    weights = inputs * outputs
    if shape.batch_invariant:
        tiles = invariant_tiles(rows, outputs, narrow=True) if now else INVARIANT
        return _tiled(tiles, rows, inputs, outputs)
    packed = shape.weight_bytes != WIDTH and not unpacked
    rate = (TAKEN.packed if packed else TAKEN.products) * H100.matrix
    size = weights * shape.weight_bytes + WIDTH * rows * (inputs + outputs)
    found = max(TAKEN.reading(H100, size), 2 * rows * weights / rate)
    if unpacked and shape.weight_bytes != WIDTH:
        found += TAKEN.reading(H100, 2 * WIDTH * weights)  # Written, and read again.
    return found


def _tiled(tiles: MatmulTiles, rows: int, inputs: int, outputs: int) -> float:
    """Seconds of our own product: its weights are read from memory once; each program takes its
    rows and columns from the cache, and multiplies whole tiles."""
    programs = tiles.programs(rows, outputs)
    taken = WIDTH * inputs * cache_cost(tiles, rows, outputs) / TAKEN.cache
    multiplied = 2 * programs * tiles.rows * tiles.columns * inputs
    size = WIDTH * (inputs * outputs + rows * (inputs + outputs))
    return max(
        TAKEN.reading(H100, size, programs),
        taken,
        multiplied / (busy(programs) * TAKEN.products * H100.matrix),
    )


def _experts(shape: Shape, rows: int, now: bool) -> float:
    """Seconds of a layer's experts: matrices that are met are read; an expert's last tile is half
    empty. Before, those in FP8 were unpacked at load."""
    if shape.experts is None:
        return 0.0
    pairs, count = rows * shape.experts.active, shape.experts.count
    tiles = expert_tiles(pairs, count, batch_invariant=shape.batch_invariant)
    weight_bytes = shape.weight_bytes if now else WIDTH
    if tiles == EXPERTS_MANY and not now:
        tiles = EXPERTS
    if shape.fp8 and now:
        tiles = EXPERTS_FP8[tiles.rows]
    each = pairs / shape.experts.met(rows)
    whole = max(1.0, each / tiles.rows + 0.5) * tiles.rows / each
    multiplied = whole * shape.expert_operations(rows)
    rate = TAKEN.tiled(H100, tiles.rows, tiles.columns, weight_bytes)
    reading = TAKEN.reading(H100, weight_bytes * _met_weights(shape, rows))
    return max(reading, multiplied / rate)


def _met_weights(shape: Shape, rows: int) -> float:
    """Numbers in the matrices of those of a layer's experts that so many rows meet."""
    return 0.0 if shape.experts is None else shape.expert_weights(shape.experts.met(rows))


def _head(shape: Shape, rows: int, head_rows: int | None) -> float:
    """Operations of the head."""
    return 2 * (rows if head_rows is None else head_rows) * shape.head_bytes / WIDTH


def _rows(shape: Shape, rows: int, now: bool) -> float:
    """Seconds of a step's kernels that go row by row, and of the gaps between all kernels."""
    small = shape.triton_kernels + shape.quantising_kernels - 1  # All but attention.
    moved = TAKEN.reading(H100, rows * shape.row_bytes)
    return shape.layers * max(small * TAKEN.row_kernel, moved) + gaps(shape, now=now)


def gaps(shape: Shape, *, now: bool) -> float:
    """Seconds of a step between one kernel and the next."""
    early = shape.layers * shape.early_kernels if now else 0
    return (shape.kernels - early) * TAKEN.gap + early * TAKEN.early_gap


def _attention(shape: Shape, contexts: list[int], idle: int) -> float:
    """Seconds of a layer's attention: keys and values are read by as many processors as there are
    splits, and programs without work take places meanwhile."""
    places = H100.processors * (H100.shared // DECODE_SHARED)
    splits = sum(-(-context // KEY_SPLIT) for context in contexts)
    reading = TAKEN.reading(H100, sum(contexts) * shape.kv_bytes, shape.kv_heads * splits)
    return reading + idle * TAKEN.idle_program / places


def _reached(stages: int) -> float:
    """Share of the matrix rate that attention reaches."""
    return TAKEN.two_tiles if tiles_in_flight(stages) >= 2 else TAKEN.one_tile
