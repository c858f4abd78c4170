"""Element-wise activations: of feed-forwards with a gate and without, of encoders and their
heads."""

from __future__ import annotations

import math
from statistics import NormalDist

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.early import await_earlier, launched_early
from penstock_kernels.triton.rounding import round_to, tanh
from penstock_kernels.triton.tiles import GATE_BLOCK, GATE_WARPS, row_block, row_warps

KINDS = ("gelu", "gelu_tanh", "relu", "tanh", "silu", "relu2", "quick_gelu")
GATED_KINDS = ("silu", "gelu_tanh", "gelu", "relu2", "clamped_swiglu")

_HALF_ROOT = tl.constexpr(math.sqrt(0.5))
_TANH_SLOPE = tl.constexpr(math.sqrt(2.0 / math.pi))
_TANH_CUBE = tl.constexpr(0.044715)
_QUICK_SLOPE = tl.constexpr(1.702)
_CLAMP = tl.constexpr(7.0)
_CLAMPED_SLOPE = tl.constexpr(1.702)
_GELU_SLOPE = tl.constexpr(math.sqrt(8.0 / math.pi))
_GELU_CUBE = tl.constexpr(0.044715)


@triton.jit
def _activate(x, out, count, KIND: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    await_earlier(EARLY)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    wide = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if KIND == "gelu":
        bent = 0.5 * wide * (1.0 + tl.erf(wide * _HALF_ROOT))
    elif KIND == "gelu_tanh":
        inner = _TANH_SLOPE * (wide + _TANH_CUBE * (wide * wide * wide))
        bent = 0.5 * wide * (1.0 + tanh(inner))
    elif KIND == "tanh":
        bent = tanh(wide)
    elif KIND == "silu":
        bent = wide / (1.0 + tl.exp(-wide))
    elif KIND == "quick_gelu":
        bent = wide / (1.0 + tl.exp(-(wide * _QUICK_SLOPE)))
    else:
        bent = tl.where(wide < 0, 0.0, wide)  # NaN stays NaN.
        if KIND == "relu2":
            bent = bent * bent
    tl.store(out + place, round_to(bent, out.dtype.element_ty), mask=inside)


def activate(x: Tensor, kind: str) -> Tensor:
    """gelu (Hendrycks and Gimpel, 2016), gelu_tanh (its tanh form), quick_gelu (its form by a
    sigmoid), relu, tanh, silu or relu2 (So et al., 2021, the square of relu).

    `x` is contiguous, of any float dtype. Computed in float32 and rounded once. Returns x's shape.
    """
    if kind not in KINDS:
        raise ValueError(f"activation {kind!r}; known are {', '.join(KINDS)}")
    out = torch.empty_like(x)
    count = x.numel()
    if count:
        grid = (triton.cdiv(count, GATE_BLOCK),)
        early = launched_early(x.device)
        _activate[grid](
            x=x, out=out, count=count, KIND=kind, BLOCK=GATE_BLOCK, num_warps=GATE_WARPS, **early
        )
    return out


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
    """activation(gate) * up. `kind` is one of GATED_KINDS: silu, gelu_tanh, gelu (Hendrycks and
    Gimpel, 2016), relu2 (So et al., 2021, the square of relu), or clamped_swiglu: with the gate at
    most 7 and up between -7 and 7, gate * sigmoid(1.702 gate) * (up + 1) (OpenAI's gpt-oss, 2025).
    Otherwise as silu_mul. Raises ValueError for another kind."""
    if kind not in GATED_KINDS:
        raise ValueError(f"gated activation {kind!r}; known are {', '.join(GATED_KINDS)}")
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, size, dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        grid = (rows, triton.cdiv(size, block))
        early = launched_early(gate_up.device)
        _gate_mul[grid](
            gate_up=gate_up, out=out, size=size, KIND=kind, BLOCK=block, num_warps=warps, **early
        )
    return out


# A gate that keeps its largest numbers only (Gemma team, "Gemma 3n", 2025).


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
