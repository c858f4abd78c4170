"""Kernels that test_rounding.py and test_levels.py launch; conftest.py imports them for the
interpreter."""

from __future__ import annotations

import triton
import triton.language as tl

from penstock_kernels.triton.rounding import fused, round_to
from penstock_kernels.triton.rowwise.cpu_activations import gated_as_cpu


@triton.jit
def round_all(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, round_to(tl.load(x + at), out.dtype.element_ty))


@triton.jit
def widen_all(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at).to(tl.float32))


@triton.jit
def fuse_all(x, y, z, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, fused(tl.load(x + at), tl.load(y + at), tl.load(z + at)))


@triton.jit
def gate_all(gate, up, out, KIND: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, gated_as_cpu(tl.load(gate + at), tl.load(up + at), KIND))
