"""Element-wise gates of feed-forward layers."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.early import await_earlier, launched_early
from penstock_kernels.triton.rounding import round_to
from penstock_kernels.triton.tiles import GATE_BLOCK, GATE_WARPS

KINDS = ("silu", "gelu_tanh", "gelu", "relu2", "clamped_swiglu")

_HALF_ROOT = tl.constexpr(math.sqrt(0.5))
_CLAMP = tl.constexpr(7.0)
_CLAMPED_SLOPE = tl.constexpr(1.702)
_GELU_SLOPE = tl.constexpr(math.sqrt(8.0 / math.pi))
_GELU_CUBE = tl.constexpr(0.044715)


@triton.jit
def _gate_mul(gate_up, out, size, KIND: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    await_earlier(EARLY)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    place = gate_up + row * 2 * size + column
    gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(place + size, mask=inside, other=0.0).to(tl.float32)
    if KIND == "gelu":
        open_part = 0.5 * gate * (1.0 + tl.erf(gate * _HALF_ROOT))
    elif KIND == "relu2":
        kept = tl.where(gate < 0, 0.0, gate)
        open_part = kept * kept
    else:
        bent = gate
        if KIND == "gelu_tanh":
            bent = _GELU_SLOPE * (gate + _GELU_CUBE * (gate * gate * gate))
        if KIND == "clamped_swiglu":
            # Written so that NaN stays NaN.
            gate = tl.where(gate > _CLAMP, _CLAMP, gate)
            up = tl.where(up > _CLAMP, _CLAMP, tl.where(up < -_CLAMP, -_CLAMP, up)) + 1.0
            bent = _CLAMPED_SLOPE * gate
        open_part = gate / (1.0 + tl.exp(-bent))
    tl.store(out + row * size + column, round_to(open_part * up, out.dtype.element_ty), mask=inside)


def silu_mul(gate_up: Tensor, *, block: int = GATE_BLOCK, warps: int = GATE_WARPS) -> Tensor:
    """silu(gate) * up, where silu(z) = z / (1 + exp(-z)) (Shazeer, 2020, "SwiGLU").

    `gate_up` is [rows, 2 * size], contiguous, the gate in the first half. Computed in float32 and
    rounded once. `block` is the number of elements per program. Returns [rows, size] in the same
    dtype.
    """
    return gated(gate_up, "silu", block=block, warps=warps)


def gelu_mul(gate_up: Tensor, *, block: int = GATE_BLOCK, warps: int = GATE_WARPS) -> Tensor:
    """gelu(gate) * up, with gelu in its tanh form (Shazeer, 2020, "GEGLU"). Otherwise as
    silu_mul."""
    return gated(gate_up, "gelu_tanh", block=block, warps=warps)


def gated(
    gate_up: Tensor, kind: str, *, block: int = GATE_BLOCK, warps: int = GATE_WARPS
) -> Tensor:
    """activation(gate) * up. `kind` is one of KINDS: silu, gelu_tanh, gelu (Hendrycks and Gimpel,
    2016), relu2 (So et al., 2021, the square of relu), or clamped_swiglu: with the gate at most 7
    and up between -7 and 7, gate * sigmoid(1.702 gate) * (up + 1) (OpenAI's gpt-oss, 2025).
    Otherwise as silu_mul. Raises ValueError for another kind."""
    if kind not in KINDS:
        raise ValueError(f"gated activation {kind!r}; known are {', '.join(KINDS)}")
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, size, dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        grid = (rows, triton.cdiv(size, block))
        early = launched_early(gate_up.device)
        _gate_mul[grid](
            gate_up=gate_up, out=out, size=size, KIND=kind, BLOCK=block, num_warps=warps, **early
        )
    return out
