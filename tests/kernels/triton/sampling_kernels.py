"""Kernels that test_row_parts.py launches; conftest.py imports them for the interpreter."""

from __future__ import annotations

import triton
import triton.language as tl

from penstock_kernels.triton.sampling.row_parts import STATS, fold, weight_of
from penstock_kernels.triton.sampling.sample import _draw_of_all


@triton.jit
def draw_at(
    logits,
    stats,
    draws,
    tokens,
    temperature,
    vocab,
    parts,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`_sample` of rows without cuts, with draws from outside."""
    row = tl.program_id(0)
    logits += row * vocab
    best, token, totals = fold(stats + row * STATS * parts, parts, temperature, PARTS)
    draw = tl.load(draws + row)
    token = _draw_of_all(logits, totals, best, temperature, draw, vocab, PART, PARTS, BLOCK)
    tl.store(tokens + row, token.to(tl.int64))


@triton.jit
def weigh_each(logits, peaks, temperatures, weights, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    temperature = tl.load(temperatures + tl.program_id(0))
    peak = tl.load(peaks + tl.program_id(0))
    tl.store(weights + at, weight_of(tl.load(logits + at), peak, temperature))
