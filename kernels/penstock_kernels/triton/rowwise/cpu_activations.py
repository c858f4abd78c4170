"""Activations with the bits of the `cpu` kernels (cpu/csrc/elementwise.h).

Every operation here is one there, in the same order, and rounds once. Kernels that use these are
launched with FUSED: a compiler that fused a product with a sum would leave out a rounding.
"""

from __future__ import annotations

import triton
import triton.language as tl

from penstock_kernels.triton.rounding import fused

FUSED = False
"""Whether the compiler may fuse products and sums."""

CPU_KINDS = ("silu", "gelu_tanh", "relu2", "clamped_swiglu")
"""Activations that `gate_levels` has."""

_WHOLE = tl.constexpr(12582912.0)  # 1.5 * 2**23: adding it rounds a float32 to whole numbers
_LOG2_E = tl.constexpr(1.44269504088896341)
_LN2_HIGH = tl.constexpr(-0.693145751953125)
_LN2_LOW = tl.constexpr(-1.428606820309417232e-6)
_LOWEST = tl.constexpr(-87.0)
_TANH_CUBE = tl.constexpr(0.044715)
_TANH_SLOPE = tl.constexpr(1.5957691216057308)
_CLAMP = tl.constexpr(-7.0)
_CLAMPED_SLOPE = tl.constexpr(1.702)


@triton.jit
def _full(x, number: tl.constexpr):
    return tl.full(x.shape, number, tl.float32)


@triton.jit
def _larger(a, b):
    """The second one where either is NaN."""
    return tl.where(a > b, a, b)


@triton.jit
def _exponential(x):
    """e^x for x from -87 to 88."""
    whole = x * _LOG2_E + _WHOLE
    n = whole - _WHOLE
    r = fused(n, _full(x, _LN2_HIGH), x)
    r = fused(n, _full(x, _LN2_LOW), r)
    p = fused(_full(x, 1.0 / 720.0), r, _full(x, 1.0 / 120.0))
    p = fused(p, r, _full(x, 1.0 / 24.0))
    p = fused(p, r, _full(x, 1.0 / 6.0))
    p = fused(p, r, _full(x, 0.5))
    p = fused(p, r, _full(x, 1.0))
    p = fused(p, r, _full(x, 1.0))
    bits = p.to(tl.int32, bitcast=True) + (whole.to(tl.int32, bitcast=True) << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _over_logistic(x, slope):
    """x times the logistic function of slope."""
    negative = _larger(0.0 - slope, _full(x, _LOWEST))
    bounded = 0.0 - _larger(0.0 - negative, _full(x, _LOWEST))
    return tl.div_rn(x, 1.0 + _exponential(bounded))


@triton.jit
def _at_most(x, negative_bound):
    return 0.0 - _larger(negative_bound, 0.0 - x)


@triton.jit
def gated_as_cpu(gate, up, KIND: tl.constexpr):
    """activation(gate) * up of float32 tiles; KIND is one of CPU_KINDS."""
    if KIND == "clamped_swiglu":
        bound = _full(gate, _CLAMP)
        kept = _at_most(gate, bound)
        within = _at_most(_larger(bound, up), bound)
        return _over_logistic(kept, kept * _CLAMPED_SLOPE) * (within + 1.0)
    else:
        poison = gate * 0.0  # NaN of what isn't finite
        if KIND == "silu":
            active = _over_logistic(gate, gate) + poison
        elif KIND == "gelu_tanh":
            cube = gate * gate * gate
            slope = fused(cube, _full(gate, _TANH_CUBE), gate) * _TANH_SLOPE
            active = _over_logistic(gate, slope) + poison
        else:
            above = _larger(_full(gate, 0.0), gate)
            active = above * above + poison
        return active * up
