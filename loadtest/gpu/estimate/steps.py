"""Seconds of a step: the limit, and the estimate."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loadtest.gpu.cost import attention_flops
from loadtest.gpu.estimate.machine import H100, TAKEN
from loadtest.gpu.estimate.model import WIDTH, Shape
from penstock_kernels.triton.matmul_tiles import (
    EXPERTS_FP8,
    MatmulTiles,
    busy,
    cache_cost,
    expert_tiles,
    invariant_tiles,
)
from penstock_kernels.triton.tiles import KEY_SPLIT, attention_choice
from penstock_worker.forward.mixed_buckets import MIXED_ROWS
from penstock_worker.quantisation.gguf.product import UNPACKED_ROWS


@dataclass(frozen=True)
class Step:
    """limit, now: seconds."""

    limit: float
    now: float

    @property
    def share(self) -> float:
        """The limit's share of the estimated time."""
        return self.limit / self.now


def decode(shape: Shape, contexts: list[int]) -> Step:
    """One more token of sequences with so many in the cache, the new one's included."""
    rows = len(contexts)
    keys = shape.layers * sum(contexts) * shape.kv_bytes / H100.memory
    now = (
        shape.layers * _attention(shape, contexts)
        + _rows(shape, rows)
        + _products(shape, rows, unpacked=rows >= UNPACKED_ROWS)
    )
    return Step(limit=_least(shape, rows) + keys, now=max(now, TAKEN.replay))


def mixed(shape: Shape, contexts: list[int], prompt: int) -> Step:
    """A decode of sequences with so many tokens, and a short prompt: a graph, padded to its
    rows."""
    sampled, rows = len(contexts) + 1, len(contexts) + prompt
    padded = next(each for each in MIXED_ROWS if each >= rows)
    operations = shape.layers * attention_flops(shape.heads, shape.head_dim, 0, prompt)
    keys = shape.layers * sum(contexts) * shape.kv_bytes / H100.memory
    now = (
        shape.layers * _attention(shape, contexts)
        + operations / (TAKEN.two_tiles * H100.matrix)
        + _rows(shape, padded)
        + _products(shape, padded, head_rows=sampled)
    )
    least = _least(shape, rows, head_rows=sampled) + keys + operations / H100.matrix
    return Step(least, max(now, TAKEN.replay))


def prefill(shape: Shape, tokens: int) -> Step:
    """A prompt in one step; the head for its last token."""
    attention = shape.layers * attention_flops(shape.heads, shape.head_dim, 0, tokens)
    stages = attention_choice(shape.head_dim).many.stages
    now = (
        _products(shape, tokens, head_rows=1)
        + _rows(shape, tokens)
        + _multiplied(shape, tokens) / (_reached(stages) * H100.matrix)
    )
    return Step(_least(shape, tokens, head_rows=1) + attention / H100.matrix, now)


def prefill_shares(shape: Shape, tokens: int) -> tuple[float, float]:
    """The shares of a prompt's limit with the least and with the most that is assumed of attention
    and the library's products."""
    step, attention = prefill(shape, tokens), _multiplied(shape, tokens) / H100.matrix
    products = _products(shape, tokens, head_rows=1)
    fixed = step.now - attention / TAKEN.two_tiles - products
    slow = fixed + attention / TAKEN.two_tiles_least
    slow += products * TAKEN.products / TAKEN.products_least
    return step.limit / slow, step.limit / (fixed + products + attention / TAKEN.two_tiles_most)


def _multiplied(shape: Shape, tokens: int) -> float:
    """Operations of a prompt's attention in whole tiles of keys: of a tile's last one, half is
    masked."""
    pairs = tokens * (tokens + attention_choice(shape.head_dim).many.keys) / 2
    return 4 * shape.layers * shape.heads * shape.head_dim * pairs


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
    shape: Shape, rows: int, *, unpacked: bool = False, head_rows: int | None = None
) -> float:
    """Seconds of all products. unpacked: quantised weights are."""
    total = sum(_product(shape, rows, *each, unpacked=unpacked) for each in shape.dense)
    at_head = rows if head_rows is None else head_rows
    head = _product(replace(shape, weight_bytes=WIDTH), at_head, shape.hidden, shape.vocab)
    return shape.layers * (total + _experts(shape, rows)) + head


def _product(
    shape: Shape, rows: int, inputs: int, outputs: int, *, unpacked: bool = False
) -> float:
    weights = inputs * outputs
    if shape.batch_invariant:
        return _tiled(invariant_tiles(rows, outputs, narrow=True), rows, inputs, outputs)
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


def _experts(shape: Shape, rows: int) -> float:
    """Seconds of a layer's experts: matrices that are met are read; an expert's last tile is half
    empty."""
    if shape.experts is None:
        return 0.0
    pairs, count = rows * shape.experts.active, shape.experts.count
    tiles = expert_tiles(pairs, count, batch_invariant=shape.batch_invariant)
    if shape.fp8:
        tiles = EXPERTS_FP8[tiles.rows]
    each = pairs / shape.experts.met(rows)
    whole = max(1.0, each / tiles.rows + 0.5) * tiles.rows / each
    multiplied = whole * shape.expert_operations(rows)
    rate = TAKEN.tiled(H100, tiles.rows, tiles.columns, shape.weight_bytes)
    reading = TAKEN.reading(H100, shape.weight_bytes * _met_weights(shape, rows))
    return max(reading, multiplied / rate)


def _met_weights(shape: Shape, rows: int) -> float:
    """Numbers in the matrices of those of a layer's experts that so many rows meet."""
    return 0.0 if shape.experts is None else shape.expert_weights(shape.experts.met(rows))


def _head(shape: Shape, rows: int, head_rows: int | None) -> float:
    """Operations of the head."""
    return 2 * (rows if head_rows is None else head_rows) * shape.head_bytes / WIDTH


def _rows(shape: Shape, rows: int) -> float:
    """Seconds of a step's kernels that go row by row, and of the gaps between all kernels."""
    small = shape.triton_kernels + shape.quantising_kernels - 1  # All but attention.
    moved = TAKEN.reading(H100, rows * shape.row_bytes)
    return shape.layers * max(small * TAKEN.row_kernel, moved) + gaps(shape)


def gaps(shape: Shape) -> float:
    """Seconds of a step between one kernel and the next."""
    early = shape.layers * shape.early_kernels
    return (shape.kernels - early) * TAKEN.gap + early * TAKEN.early_gap


def _attention(shape: Shape, contexts: list[int]) -> float:
    """Seconds of a layer's attention: keys and values are read by as many processors as there are
    splits."""
    splits = sum(-(-context // KEY_SPLIT) for context in contexts)
    return TAKEN.reading(H100, sum(contexts) * shape.kv_bytes, shape.kv_heads * splits)


def _reached(stages: int) -> float:
    """Share of the matrix rate that attention reaches."""
    return TAKEN.two_tiles if tiles_in_flight(stages) >= 2 else TAKEN.one_tile
