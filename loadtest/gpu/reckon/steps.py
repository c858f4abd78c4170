"""Seconds of a step: the limit, and what it takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from loadtest.gpu.cost import attention_flops
from loadtest.gpu.reckon.machine import H100, TAKEN
from loadtest.gpu.reckon.model import WIDTH, Shape
from penstock_kernels.triton.matmul_tiles import MatmulTiles, expert_tiles, invariant_tiles
from penstock_kernels.triton.tiles import attention_choice
from penstock_worker.quantisation.gguf.product import UNPACKED_ROWS


@dataclass(frozen=True)
class Step:
    """limit, now: seconds. eager: as now, without a graph."""

    limit: float
    now: float
    eager: float

    @property
    def share(self) -> float:
        """Of the limit."""
        return self.limit / self.now


def decode(shape: Shape, contexts: list[int]) -> Step:
    """One more token of sequences with so many in the cache, the new one's included."""
    rows, keys = len(contexts), shape.layers * sum(contexts) * shape.kv_bytes
    device = (
        TAKEN.reading(H100, keys)
        + _rows(shape, rows)
        + _products(shape, rows, unpacked=rows >= UNPACKED_ROWS)
    )
    return Step(
        limit=_least(shape, rows) + keys / H100.memory,
        now=max(device, TAKEN.replay),
        eager=max(device, shape.kernels * TAKEN.launch + TAKEN.replay),
    )


def prefill(shape: Shape, tokens: int) -> Step:
    """A prompt in one step; the head for its last token."""
    attention = shape.layers * attention_flops(shape.heads, shape.head_dim, 0, tokens)
    in_flight = tiles_in_flight(attention_choice(shape.head_dim).many.stages)
    reached = TAKEN.two_tiles if in_flight >= 2 else TAKEN.one_tile
    device = (
        _products(shape, tokens, head_rows=1)
        + _rows(shape, tokens)
        + attention / (reached * H100.matrix)
    )
    least = _least(shape, tokens, head_rows=1) + attention / H100.matrix
    return Step(least, device, max(device, shape.kernels * TAKEN.launch))


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
    """Of our own product: its weights are read from memory once; each program takes its rows and
    columns from the cache, and multiplies whole tiles."""
    programs = tiles.programs(rows, outputs)
    taken = programs * WIDTH * inputs * (min(rows, tiles.rows) + tiles.columns) / TAKEN.cache
    multiplied = 2 * programs * tiles.rows * tiles.columns * inputs
    busy = min(1.0, programs / H100.processors)
    reading = TAKEN.reading(H100, WIDTH * (inputs * outputs + rows * (inputs + outputs)))
    return max(
        reading / min(1.0, TAKEN.one_processor * busy),
        taken / busy,
        multiplied / (busy * TAKEN.products * H100.matrix),
    )


def _experts(shape: Shape, rows: int) -> float:
    """Of a layer: matrices that are met are read; an expert's last tile is half empty."""
    if shape.experts is None:
        return 0.0
    pairs, count = rows * shape.experts.active, shape.experts.count
    tiles = expert_tiles(pairs, count, batch_invariant=shape.batch_invariant)
    each = pairs / shape.experts.met(rows)
    whole = max(1.0, each / tiles.rows + 0.5) * tiles.rows / each
    multiplied = whole * shape.expert_operations(rows)
    rate = TAKEN.tiled(H100, tiles.rows, tiles.columns)
    return max(TAKEN.reading(H100, _expert_bytes(shape, rows)), multiplied / rate)


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
