"""A row's sum over its experts."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.early import await_earlier, launched_early
from penstock_kernels.triton.rounding import fused
from penstock_kernels.triton.tiles import GATE_BLOCK, GATE_WARPS


@triton.jit
def _sum_experts(
    x, weights, out, size, ACTIVE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):
    await_earlier(EARLY)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    total = tl.zeros([BLOCK], tl.float32)
    for number in range(ACTIVE):
        pair = row * ACTIVE + number
        value = tl.load(x + pair * size + column, mask=inside, other=0.0).to(tl.float32)
        weight = tl.broadcast_to(tl.load(weights + pair), value.shape)
        total = fused(value, weight, total)
    tl.store(out + row * size + column, total, mask=inside)


def sum_experts(x: Tensor, weights: Tensor) -> Tensor:
    """Adds up the weighted results of each row's experts, one after another.

    `x`: [rows * active, size], of any float dtype, those of a row in ascending order of its
    experts. `weights`: [rows, active] float32. Returns [rows, size] float32.
    """
    rows, active = weights.shape
    size = x.shape[1]
    out = torch.empty(rows, size, dtype=torch.float32, device=x.device)
    if rows:
        _sum_experts[(rows, triton.cdiv(size, GATE_BLOCK))](
            x=x,
            weights=weights,
            out=out,
            size=size,
            ACTIVE=active,
            BLOCK=GATE_BLOCK,
            num_warps=GATE_WARPS,
            **launched_early(x.device),
        )
    return out
