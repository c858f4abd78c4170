"""Element-wise activations: those of encoders and their heads, and of feed-forwards without a
gate."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.early import await_earlier, launched_early
from penstock_kernels.triton.rounding import round_to, tanh
from penstock_kernels.triton.tiles import GATE_BLOCK, GATE_WARPS

KINDS = ("gelu", "gelu_tanh", "relu", "tanh", "silu", "relu2", "quick_gelu")

_HALF_ROOT = tl.constexpr(math.sqrt(0.5))
_TANH_SLOPE = tl.constexpr(math.sqrt(2.0 / math.pi))
_TANH_CUBE = tl.constexpr(0.044715)
_QUICK_SLOPE = tl.constexpr(1.702)


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
