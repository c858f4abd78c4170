"""A kernel that test_row_parts.py launches; conftest.py imports it for the interpreter."""

from __future__ import annotations

import triton
import triton.language as tl

from penstock_kernels.triton.sampling.row_parts import STATS, fold
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
