"""Tile sizes, warps and pipeline stages of every kernel, in one place.

They are part of the numbers: another value may give other bits.  So they follow from the model's
shape and the mode, and from a step's rows in the default mode only; nothing is tuned while serving.
Chosen for Hopper (228 KiB of shared memory and 64 K registers per SM) from the bytes that a tile
keeps; still to be measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

GATE_BLOCK = 1024
GATE_WARPS = 4

ROTARY_HEADS = 8
"""Heads that one program of rope_write rotates."""

SAMPLING_BLOCK = 2048
"""Logits of a row that a program reads at once, for sampling and log-probabilities."""
SAMPLING_PART = 8192
SAMPLING_WARPS = 16


@dataclass(frozen=True)
class PartTiles:
    """Sizes of kernels that have a program for each part of a row."""

    part: int
    """Elements that a program goes through, a multiple of block."""
    block: int
    """Elements that it reads at once, at least one for each thread."""
    warps: int

    def parts(self, size: int) -> int:
        """Of a row of so many elements."""
        return triton.cdiv(size, self.part)

    def part_block(self, size: int) -> int:
        """The block that holds a number for each part."""
        return max(2, triton.next_power_of_2(self.parts(size)))


SAMPLING_TILES = PartTiles(SAMPLING_PART, SAMPLING_BLOCK, SAMPLING_WARPS)

EDIT_BLOCK = 2048
EDIT_WARPS = 4

ARGMAX_BLOCK = 2048
"""Logits that a program of `argmax` reads at once."""
ARGMAX_PART = 8192
"""Logits of a row that one program goes through."""
ARGMAX_WARPS = 8

UNPACK_BLOCK = 2048
"""Weights of an output that one program of `dequantise` writes."""
UNPACK_WARPS = 4

RANK_SUM_BLOCK = 1024
"""Elements that one program of `rank_sum` adds up over the ranks."""
RANK_SUM_WARPS = 4

POOL_ROWS, POOL_COLUMNS = 16, 128
"""Rows and columns that a program of `pool_rows` reads at once."""
POOL_WARPS = 4

COPY_BLOCK = 4096
"""Bytes that one program of a block copy moves."""
COPY_WARPS = 4


def row_block(size: int) -> int:
    """The block that holds a row of `size` elements whole."""
    return triton.next_power_of_2(size)


def row_warps(block: int) -> int:
    """About 16 elements a thread, at most 16 warps."""
    return min(16, max(1, block // 512))


@dataclass(frozen=True)
class AttentionTiles:
    """Sizes of an attention kernel. Bits depend on rows, keys and split."""

    rows: int
    """(query, head) pairs of a query tile, a power of two and at least 16."""
    keys: int
    """Per inner tile."""
    split: int
    """Keys per split, a multiple of `keys`."""
    warps: int
    stages: int


@dataclass(frozen=True)
class AttentionChoice:
    """Tiles by how many new tokens a sequence has.

    A query's bits are the same in both where their tiles are equal in rows, keys, split and
    warps.
    """

    few: AttentionTiles
    """For sequences with at most split_queries new tokens (decode): a program for each split of
    the keys."""
    many: AttentionTiles
    """For longer chunks: a program for all splits of a query tile."""
    split_queries: int = 16


KEY_SPLIT = 512
"""A split's partial result is group x head_dim float32: 1 to 3 % of the keys and values read."""


def attention_choice(head_dim: int, *, batch_invariant: bool = False) -> AttentionChoice:
    """batch_invariant: the same tiles for decode and prefill, so that a token recomputed in a chunk
    has the bits of its decode on any hardware.  Else decode packs 16 rows, the least that a tensor
    core takes, and the two agree as far as the hardware's narrow and wide products do.

    A load of keys waits for one of the block table, and each of the two takes its share of the
    stages: decode needs 5 to keep two tiles of keys on their way.
    """
    keys = 64 if head_dim <= 128 else 32
    stages = 3 if head_dim <= 128 else 2
    if batch_invariant:
        same = AttentionTiles(64, keys, KEY_SPLIT, 4, stages)
        return AttentionChoice(same, same)
    few = AttentionTiles(16, keys, KEY_SPLIT, 4, stages + 2)
    many = AttentionTiles(128 if head_dim <= 128 else 64, keys, KEY_SPLIT, 8, stages)
    return AttentionChoice(few, many)


def encoder_tiles(head_dim: int, dtype: torch.dtype) -> AttentionTiles:
    """Of attention without a cache, whose keys are one split, however many they are.

    Of 64 queries only, as inputs are short as a rule; float32, which no tensor core multiplies in
    full, is multiplied out of registers, and larger tiles would not fit those.
    """
    if dtype == torch.float32:
        size = 32 if head_dim <= 64 else 16
        return AttentionTiles(size, size, 0, 4, 2)
    keys, stages = (64, 3) if head_dim <= 64 else (64, 2) if head_dim <= 128 else (32, 2)
    return AttentionTiles(64, keys, 0, 4, stages)


@dataclass(frozen=True)
class MatmulTiles:
    """Sizes of a matrix product's programs."""

    rows: int
    """Of the output, per program."""
    columns: int
    """Of the output, per program."""
    inner: int
    """Inputs that are multiplied at a time."""
    warps: int
    stages: int

    def programs(self, rows: int, outputs: int) -> int:
        """Of a product that is [rows, outputs]."""
        return triton.cdiv(rows, self.rows) * triton.cdiv(outputs, self.columns)


INVARIANT = MatmulTiles(64, 64, 64, 4, 4)
"""The one shape of the batch-invariant product, whatever the number of rows: 64 is the height of a
Hopper tensor core's product, 64 columns still give a matrix of 4,096 outputs 64 programs."""

WEIGHT_ONLY = MatmulTiles(16, 64, 0, 4, 4)
"""For few rows: weights are read once for each 16 rows.  inner is the scales' group instead."""

GGUF_FEW = MatmulTiles(16, 64, 32, 4, 3)
"""Weights as GGUF has them: four times 64 outputs and 32 inputs, 4 to 8 KiB, on their way in each
stage."""
GGUF_MANY = MatmulTiles(64, 64, 32, 4, 2)
"""A weight is decoded once for each 64 rows; 128 would spill registers where a group has 16."""

_PROGRAMS = 512
"""About 4 for each SM of a large GPU."""
_LEAST_PART = 16
"""Groups of 32 inputs that a part has at least."""


def gguf_parts(outputs: int, inputs: int, columns: int = GGUF_FEW.columns) -> int:
    """Into how many parts a sum over the inputs is cut where there are few rows: 1, 2, 4 or 8.
    columns: instead of GGUF_FEW's, for measuring."""
    programs, groups = -(-outputs // columns), inputs // GGUF_FEW.inner
    parts = 1
    while parts < 8 and parts * programs < _PROGRAMS and groups >= 2 * parts * _LEAST_PART:
        parts *= 2
    return parts


PART_BLOCK = 1024
PART_WARPS = 4

UNPACK_TILE = 512
"""Numbers of a row that one program of `gguf_rows` writes."""

FP8 = MatmulTiles(64, 64, 128, 4, 3)
