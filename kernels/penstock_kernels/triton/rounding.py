"""Rounding, widening and tile products, the same on a device and in Triton's interpreter.

The interpreter truncates when it converts to bfloat16, loses carries when it converts to FP8,
multiplies the bit patterns of bfloat16 tiles as integers, and rounds twice in a fused multiply-add.
The branches for INTERPRETED correct that, so that results are those of the device's instructions.
"""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))

LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1.0e30)
"""The maximum over no keys at all. It is finite, so that differences aren't NaN."""

_FP8_MAX = tl.constexpr(448.0)
_ROUND_MAGIC = tl.constexpr(12582912.0)  # 1.5 * 2**23: adding it rounds a float32 to whole numbers


@triton.jit
def round_to(x, dtype: tl.constexpr):
    """Converts a float32 tile to dtype, rounded to nearest even. FP8 e4m3 saturates at +-448."""
    if dtype == tl.float8e4nv:
        x = tl.where(x == x, tl.minimum(tl.maximum(x, -_FP8_MAX), _FP8_MAX), x)
        if INTERPRETED:
            x = _fp8_grid(x)
    if INTERPRETED and dtype == tl.bfloat16:
        x = _bfloat16_grid(x)
    return x.to(dtype)


@triton.jit
def _bfloat16_grid(x):
    bits = x.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
    return tl.where(x == x, rounded.to(tl.float32, bitcast=True), x)


@triton.jit
def _fp8_grid(x):
    """Returns the nearest values that FP8 e4m3 can represent; the smallest step is 2**-9."""
    exponent = tl.maximum(((x.to(tl.int32, bitcast=True) >> 23) & 0xFF) - 127, -6)
    step = ((exponent - 3 + 127) << 23).to(tl.float32, bitcast=True)
    return ((x / step + _ROUND_MAGIC) - _ROUND_MAGIC) * step


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """Rounds a float32 tile to the precision of dtype, but keeps it in float32."""
    return round_to(x, dtype).to(tl.float32)


@triton.jit
def widened(x, dtype: tl.constexpr):
    """Converts an FP8 tile to dtype, of 16 bits or more, which has all its values; the interpreter
    to float32."""
    if INTERPRETED:
        return x.to(tl.float32)
    else:
        return x.to(dtype)


@triton.jit
def tile_dot(left, right, acc):
    """acc + left @ right, accumulated in float32. float32 tiles are multiplied in full precision,
    not in TF32."""
    if INTERPRETED:
        return tl.dot(left.to(tl.float32), right.to(tl.float32), acc)
    else:
        return tl.dot(left, right, acc, input_precision="ieee")


@triton.jit
def fused(x, y, z):
    """x * y + z of float32 tiles of one shape, rounded once."""
    if INTERPRETED:
        return _rounded_once(x.to(tl.float64) * y.to(tl.float64), z.to(tl.float64))
    else:
        return tl.fma(x, y, z)


@triton.jit
def _rounded_once(product, z):
    """product + z as float32. The float64 sum is rounded to odd, after which rounding it again, to
    less than half of its digits, gives what one rounding would (Boldo and Melquiond, 2008)."""
    total = product + z
    own = total - product
    lost = (product - (total - own)) + (z - own)
    bits = total.to(tl.int64, bitcast=True)
    away = tl.where((lost > 0) == (total > 0), 1, -1)
    inexact = (lost > 0) | (lost < 0)
    odd = tl.where(inexact & ((bits & 1) == 0), bits + away, bits)
    return odd.to(tl.float64, bitcast=True).to(tl.float32)


@triton.jit
def tanh(x):
    """Computed with exp, which all backends have; absolute error about 1e-7."""
    shrunk = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - shrunk) / (1.0 + shrunk)
    return tl.where(x < 0, -size, size)
