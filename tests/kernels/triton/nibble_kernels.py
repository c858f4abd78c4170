"""A kernel that test_nibbles.py launches; conftest.py imports it for the interpreter."""

from __future__ import annotations

import triton
import triton.language as tl

from penstock_kernels.triton.linear.nibbles import nibble_levels


@triton.jit
def unpack(raw, zeros, low, high, COUNT: tl.constexpr, WIDTH: tl.constexpr):
    column, at = tl.arange(0, COUNT), tl.arange(0, WIDTH)
    place = column[:, None] * WIDTH + at[None, :]
    held = tl.load(raw + place)
    lows, highs = nibble_levels(held, tl.load(zeros + column), low.dtype.element_ty)
    tl.store(low + place, lows)
    tl.store(high + place, highs)
