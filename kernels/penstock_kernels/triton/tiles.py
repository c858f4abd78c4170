"""Tile sizes, warps and pipeline stages of all kernels but matrix products (`matmul_tiles`).

Results depend on them: another value may give other bits. So they are determined by the model's
shape, the mode and what fits the GPU's shared memory, and only in the default mode by the number of
rows; nothing is tuned while serving. They were chosen for Hopper (228 KiB of shared memory and
64 K registers per SM) from the bytes that a tile keeps. Not measured yet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton

from penstock_kernels.triton.shared_memory import HOPPER, SharedMemory

GATE_BLOCK = 1024
GATE_WARPS = 4

CHANNEL_BLOCK = 256
"""Channels that one program of a recurrent layer's convolution goes through."""
CHANNEL_WARPS = 4
SCAN_VALUES = 32
"""Values of a head that one program of a recurrence goes through, from the first token to the
last: with keys of 128 numbers, its part of the state is 32 registers of each thread."""
SCAN_WARPS = 4
SCAN_FUSED = False
"""Whether the compiler may fuse products and sums of a scan. It would choose anew in each copy of
the loop over tokens, and a token's bits would depend on how many there are (seen on an H200)."""

ROTARY_HEADS = 8
"""Heads that one program of rope_write rotates."""

SAMPLING_BLOCK = 2048
"""Logits of a row that a program reads at a time, for sampling and log-probabilities."""
SAMPLING_PART = 8192
"""Logits of a row that one sampling program goes through."""
SAMPLING_WARPS = 16


@dataclass(frozen=True)
class PartTiles:
    """Sizes of kernels with one program per part of a row."""

    part: int
    """Elements that a program goes through, a multiple of `block`."""
    block: int
    """Elements that it reads at a time, at least one per thread."""
    warps: int

    def parts(self, size: int) -> int:
        """Number of parts of a row with `size` elements."""
        return triton.cdiv(size, self.part)

    def part_block(self, size: int) -> int:
        """Size of a block with one number per part."""
        return max(2, triton.next_power_of_2(self.parts(size)))


SAMPLING_TILES = PartTiles(SAMPLING_PART, SAMPLING_BLOCK, SAMPLING_WARPS)

ADJUST_BLOCK = 2048
"""Logits of a row that one program adjusts."""
ADJUST_WARPS = 4

ARGMAX_BLOCK = 2048
"""Logits that a program of `argmax` reads at a time."""
ARGMAX_PART = 8192
"""Logits of a row that one program goes through."""
ARGMAX_WARPS = 8

UNPACK_BLOCK = 2048
"""Weights of an output that one program of `dequantise` writes."""
UNPACK_WARPS = 4

QUANTISED_GROUPS = 8
"""Groups of 128 numbers of a row that one program quantises."""

RANK_SUM_BLOCK = 1024
"""Elements that one program of `rank_sum` sums over the ranks."""
RANK_SUM_WARPS = 4

POOL_ROWS, POOL_COLUMNS = 16, 128
"""Rows and columns that a program of `pool_rows` reads at a time."""
POOL_WARPS = 4

COPY_BLOCK = 4096
"""Bytes that one program of a block copy moves."""
COPY_WARPS = 4


def row_block(size: int) -> int:
    """Returns the block size for a whole row of `size` elements."""
    return triton.next_power_of_2(size)


def row_warps(block: int) -> int:
    """Returns the number of warps: about 16 elements per thread, at most 16 warps."""
    return min(16, max(1, block // 512))


@dataclass(frozen=True)
class AttentionTiles:
    """Sizes of an attention kernel. Results depend on `rows`, `keys`, `split` and `warps`."""

    rows: int
    """(query, head) pairs of a query tile, a power of two and at least 16."""
    keys: int
    """Keys per inner tile."""
    split: int
    """Keys per split, a multiple of `keys`; 0: all keys are one split."""
    warps: int
    stages: int
    registers: int | None = None
    """Most registers of a thread that computes single splits; None: the compiler's choice."""


@dataclass(frozen=True)
class AttentionChoice:
    """Tiles by a sequence's number of new tokens.

    If both have equal rows, keys, split and warps, a query's bits are the same with either.
    """

    few: AttentionTiles
    """Tiles for sequences with at most split_queries new tokens (decode): split by split."""
    many: AttentionTiles
    """Tiles for longer chunks: one program for all splits of a query tile."""
    split_queries: int = 16


KEY_SPLIT = 512
"""Keys per split. A split's partial result is group x head_dim float32: 1 to 3 % of the keys and
values read."""
PARTIAL_BYTES = 128 << 20
"""Memory for partial results. For decodes with 8 KV heads of 128, each with 4 query heads, it holds
8,192 splits at a time, which are enough programs for any device."""
LISTED_TILES = 512
"""Most tiles whose splits one launch goes through."""
ATTENTION_PROGRAMS = 2048
"""Most programs that go through the splits of a launch, for all KV heads: five times as many as an
H100 has room for at once, so that all of its processors end at about the same time."""
PAIRED_ROWS = 32
"""Rows of a tile up to which values in FP8 are read as pairs: those that wgmma, with 64 rows and
more, doesn't multiply. Either way a sum has the same bits."""
COMBINE_STAGES = 5
"""Pipeline stages of the loop that folds the splits of a row."""
DECODE_REGISTERS = 168
"""Registers of a thread, so that three programs of 4 warps fit an SM, as their shared memory
does."""
STAGES = 5
"""A load of keys or values waits for a load of the block table, and each of the two takes up
pipeline stages: 5 keep two tiles in flight, and fewer none."""
FEW_STAGES = 3
"""Stages with which one tile of keys and one of values are held, and none is in flight."""
OVERHEAD_BYTES = 1024
"""Bytes of shared memory, at most, for what isn't counted."""


def attention_bytes(
    tiles: AttentionTiles,
    head_dim: int,
    number_bytes: int,
    shared: SharedMemory,
    *,
    keys_only: bool = False,
) -> int:
    """Returns how much shared memory a program takes at most. `keys_only`: values are a part of
    the keys."""
    direct = shared.direct and number_bytes <= 2
    row = (head_dim if keys_only else triton.next_power_of_2(head_dim)) * number_bytes
    held = (2 if tiles.stages >= STAGES else 1) + direct
    # Fewer rows than warps have lanes for are passed between them.
    weights = 0 if direct or tiles.rows > 64 else tiles.rows * tiles.keys * number_bytes
    loaded = (1 if keys_only else 2) * held * tiles.keys
    return (tiles.rows + loaded) * row + weights + 8 * tiles.rows + OVERHEAD_BYTES


def attention_choice(
    head_dim: int,
    dtype: torch.dtype = torch.bfloat16,
    *,
    batch_invariant: bool = False,
    shared: SharedMemory = HOPPER,
) -> AttentionChoice:
    """Returns the tiles for this head dimension. `dtype` is the wider one of queries and cache.
    `shared`: that they have to fit; with less than Hopper's, fewer loads are in flight, or prefill
    has smaller tiles.

    With `batch_invariant`, decode and prefill have the same tiles, so that a token that is
    recomputed in a chunk has the bits of its decode on any hardware. Otherwise decode packs 16
    rows, the minimum of a tensor core, and prefill goes through all keys as one split: without a
    second sum for folding, more of them fit. The two then agree as far as orders of sums do.

    Of heads above 256, few rows and few keys at a time fit registers. So it is with float32, which
    isn't multiplied by tensor cores.
    """

    def fitting(*choices: AttentionTiles) -> AttentionTiles:
        each = (*choices, replace(choices[-1], stages=FEW_STAGES))
        wanted = (attention_bytes(one, head_dim, dtype.itemsize, shared) for one in each)
        fits = (one for one, size in zip(each, wanted, strict=True) if size <= shared.size)
        return next(fits, each[-1])

    if head_dim > 256 or dtype == torch.float32:
        few = AttentionTiles(16, 32 if head_dim <= 128 else 16, KEY_SPLIT, 8, STAGES)
        many = few if batch_invariant else replace(few, rows=32, split=0)
        return AttentionChoice(fitting(few), fitting(many, replace(many, rows=16)))
    keys = 64 if head_dim <= 128 else 32
    if batch_invariant:
        same = fitting(AttentionTiles(64, keys, KEY_SPLIT, 4 if head_dim <= 128 else 8, STAGES))
        return AttentionChoice(same, same)
    few = fitting(AttentionTiles(16, keys, KEY_SPLIT, 4, STAGES, DECODE_REGISTERS))
    if head_dim <= 128:
        large, small = AttentionTiles(128, 128, 0, 8, STAGES), AttentionTiles(64, 64, 0, 4, STAGES)
    else:
        large, small = AttentionTiles(64, 64, 0, 8, STAGES), AttentionTiles(64, 32, 0, 8, STAGES)
    return AttentionChoice(few, fitting(large, small))


def latent_choice(
    head_dim: int = 576,
    dtype: torch.dtype = torch.bfloat16,
    *,
    batch_invariant: bool = False,
    shared: SharedMemory = HOPPER,
) -> AttentionChoice:
    """Returns the tiles for attention over latents of up to 512 numbers, which all heads share.
    `head_dim`: with the numbers that rotate; `dtype`, `shared`: see `attention_choice`.

    A row's weighted latents stay in the registers of 8 warps, which 32 rows fit. Two stages of
    float32 keys fit the shared memory of large GPUs; others have 16 rows and keys.
    """
    few = AttentionTiles(16, 32, KEY_SPLIT, 8, 2)
    many = few if batch_invariant else AttentionTiles(32, 32, 0, 8, 2)
    most = attention_bytes(many, head_dim, dtype.itemsize, shared, keys_only=True)
    if most > shared.size:
        few = replace(few, keys=16)
        many = few if batch_invariant else replace(few, split=0)
    return AttentionChoice(few, many)


def latent_group(heads: int, choice: AttentionChoice) -> int:
    """Returns how many of the heads that share a latent are computed together: as many as divide
    all of them and fit a tile."""
    fitting = range(min(heads, choice.few.rows), 0, -1)
    return next(group for group in fitting if heads % group == 0)


def encoder_tiles(head_dim: int, dtype: torch.dtype) -> AttentionTiles:
    """Returns the tiles for attention without a cache, where all keys are one split.

    Tiles have 64 queries only, as inputs are usually short. float32, which tensor cores don't
    multiply in full precision, is multiplied in registers, and larger tiles wouldn't fit there.
    """
    if dtype == torch.float32:
        size = 32 if head_dim <= 64 else 16
        return AttentionTiles(size, size, 0, 4, 2)
    keys, stages = (64, 3) if head_dim <= 64 else (64, 2) if head_dim <= 128 else (32, 2)
    return AttentionTiles(64, keys, 0, 4, stages)


PLACE_BLOCK = 1024
"""Pairs of a row and an expert that a program of `place_rows` goes through at a time."""
PLACE_WARPS = 4
TILE_LIST_BLOCK = 32
"""Tiles that one program lists."""

PART_BLOCK = 1024
PART_WARPS = 4

UNPACK_TILE = 512
"""Numbers of a row that one program of `gguf_rows` writes."""

LEVEL_GROUPS = 16
"""Groups of 32 numbers of a row that one program rounds to bytes."""
LEVEL_WARPS = 4
