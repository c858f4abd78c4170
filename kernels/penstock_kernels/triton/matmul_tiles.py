"""Tiles of matrix products: as in `tiles`, results may depend on them, so the model's shape and the
mode determine them, and only in the default mode the number of rows (but for `invariant_tiles`,
which all give the same bits). They were chosen for Hopper. Not measured yet.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton


@dataclass(frozen=True)
class MatmulTiles:
    """Sizes of the programs of a matrix product."""

    rows: int
    """Rows of the output per program."""
    columns: int
    """Columns of the output per program."""
    inner: int
    """Inputs that are multiplied at a time."""
    warps: int
    stages: int

    def programs(self, rows: int, outputs: int) -> int:
        """Number of programs for a product of shape [rows, outputs]."""
        return triton.cdiv(rows, self.rows) * triton.cdiv(outputs, self.columns)


INVARIANT = MatmulTiles(64, 64, 64, 4, 4)
"""Tiles of the batch-invariant product. 64 is the height of a Hopper tensor core's product."""
INVARIANT_NARROW = MatmulTiles(64, 32, 64, 4, 8)
"""Tiles for matrices with so few outputs that half of a GPU would have nothing to do."""
INVARIANT_FEW = (MatmulTiles(16, 64, 64, 4, 4), MatmulTiles(32, 64, 64, 4, 4))
"""Tiles for few rows of a matrix that is the left operand."""
INVARIANT_TALL = MatmulTiles(128, 64, 64, 8, 4)
INVARIANT_SQUARE = MatmulTiles(128, 128, 64, 8, 4)
INVARIANT_LARGE = MatmulTiles(128, 256, 64, 8, 4)
"""For more rows, of which the second-level cache is what limits smaller tiles: the larger a tile,
the fewer times rows and weights are read from there. 256 x 64 would read more than 128 x 128 does,
with as many programs."""
INVARIANT_MANY = (
    INVARIANT_LARGE,
    INVARIANT_SQUARE,
    INVARIANT_TALL,
    INVARIANT,
    INVARIANT_NARROW,
)
INVARIANT_ORDER = 2
"""The version of the order in which batch-invariant products add and of the operand that comes
first, raised with each change that may change bits. Fingerprints contain it."""
PROGRAMS = 128
"""Programs from which on nearly all of an H100's processors have one."""
PROCESSORS = 132
"""Streaming multiprocessors of an H100."""
CACHE_SHARE = 1.25
"""Assumed: of its share of the second-level cache's rate, what a processor takes where others do
nothing."""


def are_weights_first(outputs: int, *, narrow: bool) -> bool:
    """Whether a batch-invariant product has the matrix as its left operand: if its tiles of 64
    outputs, which tensor cores' instructions then want, occupy a GPU. The same for any number of
    rows."""
    return narrow and INVARIANT.programs(1, outputs) >= PROGRAMS


def invariant_tiles(rows: int, outputs: int, *, narrow: bool) -> MatmulTiles:
    """Returns the tiles of a batch-invariant product. A matrix's all give the same bits: with each,
    a sum goes through the inputs in steps of the same size and in one order, by the same kind of
    instruction with the same operand on the left, and only the number of sums that a program has
    differs.

    More than 64 rows are rounded up to a power of two and get the tiles that take the least time to
    read from the cache, so that a rehearsal of powers of two meets all that serve.

    `narrow`: whether numbers are of 16 bits; float32 isn't multiplied by tensor cores, and has one
    shape.
    """
    if not narrow:
        return INVARIANT
    first = are_weights_first(outputs, narrow=narrow)
    if rows <= INVARIANT.rows:
        few = (*INVARIANT_FEW, INVARIANT) if first else (INVARIANT_NARROW,)
        return next(tiles for tiles in few if rows <= tiles.rows)
    whole = triton.next_power_of_2(rows)
    many = [tiles for tiles in INVARIANT_MANY if not first or tiles.columns >= INVARIANT.columns]
    return min(many, key=lambda tiles: cache_cost(tiles, whole, outputs))


def cache_cost(tiles: MatmulTiles, rows: int, outputs: int) -> float:
    """Returns how many numbers the programs of a product take from the cache for each input, over
    the share of its rate at which the processors that have work can take them."""
    programs = tiles.programs(rows, outputs)
    taken = programs * (min(rows, tiles.rows) + tiles.columns)
    return taken / min(1.0, CACHE_SHARE * busy(programs))


def busy(programs: int) -> float:
    """Returns the share of an H100's processors that have work, on average, while the one with most
    programs goes through them."""
    return programs / (PROCESSORS * triton.cdiv(programs, PROCESSORS))


EXPERTS = MatmulTiles(64, 64, 64, 4, 4)
"""Tiles for the rows of an expert."""
EXPERTS_FEW = MatmulTiles(16, 64, 64, 4, 4)
"""Tiles for so few rows that an expert has no more than one tile, if they are dealt out evenly."""
EXPERTS_MANY = MatmulTiles(128, 256, 64, 8, 4)
"""Tiles for so many rows that most of an expert's tiles are full, if they are dealt out evenly."""

EXPERTS_FP8 = {
    EXPERTS_FEW.rows: MatmulTiles(16, 64, 128, 4, 4),
    EXPERTS.rows: MatmulTiles(64, 64, 128, 4, 3),
    EXPERTS_MANY.rows: MatmulTiles(128, 128, 128, 8, 3),
}
"""For weights in FP8, by the number of rows. A step has 128 inputs, as a block scale has. Weights
are widened in registers, which leaves room for half as many columns; they are half as large, so the
second-level cache feeds both shapes for many rows at the same rate. All give the same bits."""


def expert_tiles(
    rows: int, experts: int, *, batch_invariant: bool, packed: bool = False, exact: bool = False
) -> MatmulTiles:
    """Returns the tiles for `rows` pairs of a row and an expert. Those of plain weights give the
    same bits, as `invariant_tiles` do.

    `packed`: weights are decoded in registers, of which large tiles leave too few. Then there is
    one shape with `batch_invariant`, as the instructions that multiply differ.
    `exact`: these products are whole numbers, the same by any instruction.
    """
    if packed and batch_invariant and not exact:
        return EXPERTS
    if rows <= EXPERTS_FEW.rows * experts:
        return EXPERTS_FEW
    return EXPERTS if packed or rows < 2 * EXPERTS_MANY.rows * experts else EXPERTS_MANY


LOW_RANK = MatmulTiles(16, 64, 128, 4, 4)
"""For rows of an adapter: the one shape with `batch_invariant`, and that of few rows."""
LOW_RANK_MANY = MatmulTiles(64, 64, 64, 4, 3)
"""For so many rows that the adapters' tiles are mostly full."""
LOW_RANK_PART = 1024
"""Inputs that a program of `_shrink` goes through, a multiple of each shape's `inner`."""


def low_rank_tiles(rows: int, adapters: int, *, batch_invariant: bool) -> MatmulTiles:
    """Returns the tiles for `rows` rows that have one of so many adapters."""
    many = not batch_invariant and rows > LOW_RANK_MANY.rows * adapters
    return LOW_RANK_MANY if many else LOW_RANK


def low_rank_block(rank: int) -> int:
    """Returns how many of the `rank` numbers between two factors a program computes at a time.
    `rank` is a multiple of 16."""
    return next(block for block in (64, 32, 16) if rank % block == 0)


WEIGHT_ONLY = MatmulTiles(16, 64, 0, 4, 4)
"""For few rows, and the one shape with `batch_invariant`. In place of `inner`, the scales' group
applies."""
WEIGHT_ONLY_MANY = MatmulTiles(64, 64, 0, 4, 3)
"""For more rows: a weight is decoded once per 64 of them."""

GGUF_FEW = MatmulTiles(16, 64, 32, 4, 3)
"""For GGUF weights and few rows. Each stage has four times 64 outputs by 32 inputs, 4 to 8 KiB, in
flight."""
GGUF_MANY = MatmulTiles(64, 64, 32, 4, 2)
"""For GGUF weights and many rows. A weight is decoded once per 64 rows; 128 would spill registers
where a group has 16 inputs."""

_PROGRAMS = 512
"""About 4 per SM of a large GPU."""
_LEAST_PART = 16
"""Fewest groups of 32 inputs in a part."""


def gguf_parts(outputs: int, inputs: int, columns: int = GGUF_FEW.columns) -> int:
    """Returns into how many parts a sum over the inputs is divided if there are few rows: 1, 2, 4
    or 8. `columns` replaces GGUF_FEW's, for measurements."""
    programs, groups = -(-outputs // columns), inputs // GGUF_FEW.inner
    parts = 1
    while parts < 8 and parts * programs < _PROGRAMS and groups >= 2 * parts * _LEAST_PART:
        parts *= 2
    return parts


FP8 = MatmulTiles(64, 64, 128, 4, 3)
