"""Matrix product of activations and a weight matrix."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from penstock_kernels.reference.tiling import ROW_TILE, pad_rows

if TYPE_CHECKING:
    from torch import Tensor

COLUMN_BLOCK = 4096
"""Output columns computed at a time, so that a vocabulary-sized weight is read from memory once for
all row tiles, and not once per tile."""

LANES = 16
"""Outputs are computed in multiples of this."""

FEWEST_OUTPUTS = 80
"""Narrower products are padded with zeros. MKL on AVX2 divides their rows, not their columns, among
2 threads, and sums some rows of a tile in another order."""

ALIGNMENT = 64
"""In bytes: torch's alignment of newly allocated memory, and the width of the widest vector
registers."""

WIDENED_BLOCK = 1024
"""Output columns converted to float32 at a time. For the vocabulary of SmolLM2-135M, 16 rows, 1
thread with AVX-512 but no BF16, in milliseconds: 29 with 512, 31 with 1,024, 79 with 4,096 (the
float32 copy no longer stays in the cache); 40 by oneDNN's bfloat16 product."""


@cache
def multiplies_bfloat16() -> bool:
    """Returns whether the processor has bfloat16 instructions. Without them, oneDNN divides a
    tile's rows among 3 threads and sums the first row of each part in another order."""
    found = torch.cpu.get_capabilities()
    return any(found.get(unit, False) for unit in ("avx512_bf16", "amx_bf16"))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias, each row independently.

    `x` is [rows, inputs], `weight` [outputs, inputs], `bias` [outputs] or None; all of one dtype,
    float32 or bfloat16 (accumulated in float32). The weight must have torch's own alignment, unlike
    a file's memory map. Returns [rows, outputs].

    A product of 1 row and one of 7 rows may sum in different orders, so each product here has
    exactly ROW_TILE rows. Time of all products of one SmolLM2-135M forward pass, including the
    output head, by tile height (1 thread, AVX-512 with BF16; milliseconds per tile / per 64 rows):

        rows     1      8          16         32         64
        float32  43/-   69/551     90/362     132/264    217/217
        bfloat16 31/-   39/312     50/201     69/138     108/108

    A processor without bfloat16 instructions multiplies float32 copies of the operands, which are
    exact, and rounds each sum once.
    """
    padded = pad_rows(x)
    if x.dtype == torch.bfloat16 and not multiplies_bfloat16():
        out = _widened_product(padded, weight)
    else:
        out = _product(padded, weight)
    if bias is not None:
        out += bias
    return out[: x.shape[0]]


def _widened_product(padded: Tensor, weight: Tensor) -> Tensor:
    """_product for bfloat16 operands, computed in float32."""
    wide = padded.float()
    out = padded.new_empty(padded.shape[0], weight.shape[0])
    for column in range(0, weight.shape[0], WIDENED_BLOCK):
        columns = slice(column, column + WIDENED_BLOCK)
        out[:, columns] = _product(wide, weight[columns].float())
    return out


def _product(padded: Tensor, weight: Tensor) -> Tensor:
    """padded @ weight.T, where `padded` is [rows, inputs], whole tiles. Returns [rows, outputs]."""
    outputs = weight.shape[0]
    out = padded.new_empty(padded.shape[0], outputs)
    in_place = _tiles_aligned(padded) and _tiles_aligned(out) and outputs % LANES == 0
    # The last block may be narrow.
    in_place = in_place and (-outputs % COLUMN_BLOCK) <= COLUMN_BLOCK - FEWEST_OUTPUTS
    for column in range(0, outputs, COLUMN_BLOCK):
        columns = slice(column, min(column + COLUMN_BLOCK, outputs))
        block = _whole_lanes(weight[columns]).t()
        for row in range(0, padded.shape[0], ROW_TILE):
            tile = slice(row, row + ROW_TILE)
            if in_place:
                torch.mm(padded[tile], block, out=out[tile, columns])
            else:
                product = torch.mm(padded[tile].clone(), block)
                out[tile, columns] = product[:, : columns.stop - columns.start]
    return out


def _whole_lanes(weight: Tensor) -> Tensor:
    """Returns `weight` with zero rows appended up to a multiple of LANES, and at least
    FEWEST_OUTPUTS.

    With an odd number of outputs, MKL divides a product among 3 or more threads in such a way that
    the rows of a tile are summed in different orders.
    """
    missing = max(-weight.shape[0] % LANES, FEWEST_OUTPUTS - weight.shape[0])
    return torch.nn.functional.pad(weight, (0, 0, 0, missing)) if missing else weight


def _tiles_aligned(x: Tensor) -> bool:
    """Returns whether every row tile of x has the alignment of a newly allocated tensor. With
    another one, BLAS may sum in another order."""
    tile_bytes = ROW_TILE * x.shape[1] * x.element_size()
    return tile_bytes % ALIGNMENT == 0 and x.data_ptr() % ALIGNMENT == 0


def rank_sum(parts: Tensor) -> Tensor:
    """parts[0] + parts[1] + …, added one after another in float32 and rounded once.

    `parts` is [ranks, *shape], of any float dtype. Returns [*shape] in the same dtype.
    """
    total = parts[0].to(torch.float32, copy=True)
    for part in parts[1:]:
        total += part
    return total.to(parts.dtype)
