"""A gate that keeps its largest numbers only (Gemma team, "Gemma 3n", 2025)."""

from __future__ import annotations

from statistics import NormalDist

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.rounding import round_to
from penstock_kernels.triton.tiles import row_block, row_warps


@triton.jit
def _sparse_gate(gate_up, out, size, deviations, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * 2 * size
    column = tl.arange(0, BLOCK)
    inside = column < size
    gate = tl.load(gate_up + row + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(gate, 0) / size
    off = tl.where(inside, gate - mean, 0.0)
    above = gate - (mean + tl.sqrt_rn(tl.sum(off * off, 0) / size) * deviations)
    kept = tl.where(above < 0, 0.0, above)  # NaN stays NaN.
    tl.store(out + row + column, round_to(kept, out.dtype.element_ty), mask=inside)
    up = tl.load(gate_up + row + size + column, mask=inside, other=0.0)
    tl.store(out + row + size + column, up, mask=inside)


def sparse_gate(gate_up: Tensor, share: float) -> Tensor:
    """Computes reference.sparse_gate. `gate_up` is [rows, 2 * size], contiguous, of any float
    dtype."""
    out = torch.empty_like(gate_up)
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    if rows:
        block = row_block(size)
        _sparse_gate[(rows,)](
            gate_up=gate_up,
            out=out,
            size=size,
            deviations=NormalDist().inv_cdf(share),
            BLOCK=block,
            num_warps=row_warps(block),
        )
    return out
