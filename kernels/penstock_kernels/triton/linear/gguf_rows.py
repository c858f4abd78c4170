"""Look-up of rows of weights that stay in GGUF's quantised types."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.linear.gguf_groups import half_of_bytes, twice_e2m1
from penstock_kernels.triton.linear.gguf_weights import GGUFWeights
from penstock_kernels.triton.rounding import round_to
from penstock_kernels.triton.tiles import UNPACK_TILE, UNPACK_WARPS


@triton.jit
def _gguf_rows(
    ids,
    levels,
    high,
    scales,
    minima,
    units,
    unit_minima,
    out,
    outputs,
    inputs,
    BITS: tl.constexpr,
    OFFSET: tl.constexpr,
    E2M1: tl.constexpr,
    GROUP: tl.constexpr,
    MINIMA: tl.constexpr,
    UNIT: tl.constexpr,
    CHOSEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Decodes row ids[program], or row `program`, with the arithmetic of ggml: one rounding per
    operation."""
    row = tl.program_id(0).to(tl.int64)
    source = row
    if CHOSEN:
        source = tl.load(ids + row).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < inputs
    group = (column // 32).to(tl.int64) * outputs + source
    within = column % 32
    if BITS == 8:
        level = tl.load(levels + group * 32 + within, mask=inside, other=0).to(tl.int32)
    else:
        raw = tl.load(levels + group * 16 + within % 16, mask=inside, other=0).to(tl.int32)
        level = (raw >> (within // 16 * 4)) & 15
        if BITS > 4:
            PLANES: tl.constexpr = BITS - 4
            for plane in tl.static_range(PLANES):
                bits = tl.load(high + group * PLANES + plane, mask=inside, other=0)
                level |= ((bits >> within) & 1) << (4 + plane)
        if E2M1:
            level = twice_e2m1(level)
    place = (column // GROUP).to(tl.int64) * outputs + source
    scale = tl.load(scales + place, mask=inside, other=0)
    if E2M1:
        scale = half_of_bytes(scale, GROUP)
    scale = scale.to(tl.float32)
    if UNIT > 0:
        unit = (column // UNIT).to(tl.int64) * outputs + source
        scale *= tl.load(units + unit, mask=inside, other=0).to(tl.float32)
    value = scale * (level - OFFSET).to(tl.float32)
    if MINIMA:
        least = tl.load(minima + place, mask=inside, other=0).to(tl.float32)
        if UNIT > 0:
            least *= tl.load(unit_minima + unit, mask=inside, other=0).to(tl.float32)
        value += least
    tl.store(out + row * inputs + column, round_to(value, out.dtype.element_ty), mask=inside)


def gguf_rows(weights: GGUFWeights, ids: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Returns rows of the matrix, as for an embedding, each number rounded once to dtype.

    `ids` is [rows] int64, each below weights.outputs; None for all rows. Returns [rows, inputs].
    """
    rows, inputs = weights.outputs if ids is None else len(ids), weights.inputs
    out = torch.empty(rows, inputs, dtype=dtype, device=weights.levels.device)
    if rows:
        _gguf_rows[(rows, triton.cdiv(inputs, UNPACK_TILE))](
            ids=ids,
            **weights.operands,
            out=out,
            outputs=weights.outputs,
            inputs=inputs,
            **weights.layout.constants,
            CHOSEN=ids is not None,
            BLOCK=UNPACK_TILE,
            num_warps=UNPACK_WARPS,
        )
    return out
