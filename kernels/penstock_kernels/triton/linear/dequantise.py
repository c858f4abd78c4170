"""Unpacks weights to floats, for products with so many rows that a plain product is faster."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.linear.weight_only import PackedWeights
from penstock_kernels.triton.rounding import round_to
from penstock_kernels.triton.tiles import UNPACK_BLOCK, UNPACK_WARPS


@triton.jit
def _dequantise(
    levels,
    scales,
    zeros,
    out,
    inputs,
    ZEROS: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < inputs
    if BITS == 4:
        HALF: tl.constexpr = GROUP // 2
        byte = column // GROUP * HALF + column % HALF
        raw = tl.load(levels + row * (inputs // 2) + byte, mask=inside, other=0).to(tl.int32)
        level = ((raw >> (column % GROUP // HALF * 4)) & 15).to(tl.float32)
    else:
        level = tl.load(levels + row * inputs + column, mask=inside, other=0).to(tl.float32)
    place = row * (inputs // GROUP) + column // GROUP
    if ZEROS:
        level -= tl.load(zeros + place, mask=inside, other=0.0).to(tl.float32)
    elif BITS == 4:
        level -= 8.0
    scale = tl.load(scales + place, mask=inside, other=0.0).to(tl.float32)
    value = round_to(level * scale, out.dtype.element_ty)
    tl.store(out + row * inputs + column, value, mask=inside)


def dequantise(weights: PackedWeights, dtype: torch.dtype) -> Tensor:
    """(level - zero) * scale, rounded once to dtype. Returns [outputs, inputs]."""
    outputs = weights.levels.shape[0]
    inputs = weights.scales.shape[1] * weights.group
    out = torch.empty(outputs, inputs, dtype=dtype, device=weights.levels.device)
    if outputs:
        _dequantise[(outputs, triton.cdiv(inputs, UNPACK_BLOCK))](
            levels=weights.levels,
            scales=weights.scales,
            zeros=weights.zeros,
            out=out,
            inputs=inputs,
            ZEROS=weights.zeros is not None,
            BITS=weights.bits,
            GROUP=weights.group,
            BLOCK=UNPACK_BLOCK,
            num_warps=UNPACK_WARPS,
        )
    return out
