"""The argmax token of each row of logits, and whether the row is finite.

A row is divided into parts of fixed size, so that a few rows occupy a whole device; a second
program combines a row's parts. Comparisons don't round, so the division has no effect on results.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.tiles import ARGMAX_BLOCK, ARGMAX_PART, ARGMAX_WARPS

_NO_ID = tl.constexpr(0x7FFFFFFF)
_BAD = tl.constexpr(-1)


@triton.jit
def _parts(
    logits, peaks, ids, vocab, parts, HOLES: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr
):
    row, part = tl.program_id(0), tl.program_id(1)
    logits += row.to(tl.int64) * vocab
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_id = tl.full([BLOCK], _NO_ID, tl.int32)
    bad = tl.zeros([BLOCK], tl.int32)
    for base in range(0, PART, BLOCK):
        at = part * PART + base + tl.arange(0, BLOCK)
        x = tl.load(logits + at, mask=at < vocab, other=0.0)
        wrong = (x != x) | (x == float("inf"))
        if not HOLES:
            wrong |= x == float("-inf")
        bad |= wrong.to(tl.int32)
        ahead = (x > best) & (at < vocab)  # Comparisons with NaN are false.
        best_id = tl.where(ahead, at, best_id)
        best = tl.where(ahead, x, best)
    peak = tl.max(best, 0)
    token = tl.min(tl.where(best == peak, best_id, _NO_ID), 0)
    token = tl.where(tl.max(bad, 0) > 0, _BAD, token)
    tl.store(peaks + row * parts + part, peak)
    tl.store(ids + row * parts + part, token)


@triton.jit
def _join(peaks, ids, tokens, parts, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    part = tl.arange(0, BLOCK)
    inside = part < parts
    peak = tl.load(peaks + row * parts + part, mask=inside, other=float("-inf"))
    token = tl.load(ids + row * parts + part, mask=inside, other=_NO_ID)
    best = tl.max(peak, 0)
    chosen = tl.min(tl.where(peak == best, token, _NO_ID), 0)
    bad = (tl.min(token, 0) == _BAD) | (best == float("-inf"))
    tl.store(tokens + row, tl.where(bad, _BAD, chosen).to(tl.int64))


def argmax(
    logits: Tensor,
    *,
    holes: bool = False,
    part: int = ARGMAX_PART,
    block: int = ARGMAX_BLOCK,
    warps: int = ARGMAX_WARPS,
) -> Tensor:
    """Returns [rows] int64: the id of each row's largest logit, the lowest of equal ones; -1 if a
    logit is not finite.

    `logits`: [rows, vocab] float32, contiguous.
    `holes`: whether -inf marks ids that can't be sampled, and doesn't make the row count as not
    finite. A row of nothing else still gives -1.
    `part`: logits that a program goes through, a multiple of `block`.
    `block`: logits that it reads at a time.
    """
    rows, vocab = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        parts = triton.cdiv(vocab, part)
        peaks = torch.empty(rows, parts, dtype=torch.float32, device=logits.device)
        ids = torch.empty(rows, parts, dtype=torch.int32, device=logits.device)
        _parts[(rows, parts)](
            logits=logits,
            peaks=peaks,
            ids=ids,
            vocab=vocab,
            parts=parts,
            HOLES=holes,
            PART=part,
            BLOCK=block,
            num_warps=warps,
        )
        whole = max(2, triton.next_power_of_2(parts))
        _join[(rows,)](peaks=peaks, ids=ids, tokens=tokens, parts=parts, BLOCK=whole, num_warps=1)
    return tokens
