"""Element-wise gates of feed-forward layers."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.rounding import round_to
from penstock_kernels.triton.tiles import GATE_BLOCK, GATE_WARPS

_GELU_SLOPE = tl.constexpr(math.sqrt(8.0 / math.pi))
_GELU_CUBE = tl.constexpr(0.044715)


@triton.jit
def _gate_mul(gate_up, out, size, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    place = gate_up + row * 2 * size + column
    gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(place + size, mask=inside, other=0.0).to(tl.float32)
    bent = gate
    if GELU:
        bent = _GELU_SLOPE * (gate + _GELU_CUBE * (gate * gate * gate))
    open_part = gate / (1.0 + tl.exp(-bent))
    tl.store(out + row * size + column, round_to(open_part * up, out.dtype.element_ty), mask=inside)


def silu_mul(gate_up: Tensor, *, block: int = GATE_BLOCK, warps: int = GATE_WARPS) -> Tensor:
    """silu(gate) * up, where silu(z) = z / (1 + exp(-z)) (Shazeer, 2020, "SwiGLU").

    `gate_up` is [rows, 2 * size], contiguous, the gate in the first half. Computed in float32 and
    rounded once. `block` is the number of elements per program. Returns [rows, size] in the same
    dtype.
    """
    return _launch(gate_up, block, warps, gelu=False)


def gelu_mul(gate_up: Tensor, *, block: int = GATE_BLOCK, warps: int = GATE_WARPS) -> Tensor:
    """gelu(gate) * up, with gelu in its tanh form (Shazeer, 2020, "GEGLU"). Otherwise as
    silu_mul."""
    return _launch(gate_up, block, warps, gelu=True)


def _launch(gate_up: Tensor, block: int, warps: int, *, gelu: bool) -> Tensor:
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, size, dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        grid = (rows, triton.cdiv(size, block))
        _gate_mul[grid](gate_up, out, size, GELU=gelu, BLOCK=block, num_warps=warps)
    return out
