"""Log-probabilities of a given token of each row, and of its most likely tokens.

A program has one row. It computes the largest logit, the sum of exponentials in float64 and, if
requested, finds the most likely tokens by a radix search (`selection.py`), and ranks them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock_kernels.triton.sampling.selection import kept_entries, order_key, threshold
from penstock_kernels.triton.tiles import SAMPLING_BLOCK, SAMPLING_WARPS

MOST = 64
"""Largest number of most likely tokens."""


@dataclass(frozen=True)
class TopLogProbs:
    """Log-probabilities of each row."""

    own: Tensor
    """[rows] float32: those of the given tokens."""
    ids: Tensor
    """[rows, count] int64: the most likely tokens in descending order; of equally likely ones the
    lower id comes first."""
    top: Tensor
    """[rows, count] float32: those of `ids`."""


@triton.jit
def _log_probs(
    logits,
    given,
    own,
    ids,
    top,
    found,
    vocab,
    count,
    BLOCK: tl.constexpr,
    COUNT_BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    logits += row.to(tl.int64) * vocab
    peak = tl.full((), float("-inf"), tl.float32)
    for base in range(0, vocab, BLOCK):
        at = base + tl.arange(0, BLOCK)
        x = tl.load(logits + at, mask=at < vocab, other=float("-inf"))
        peak = tl.maximum(peak, tl.max(x, 0))
    total = tl.full((), 0.0, tl.float64)
    for base in range(0, vocab, BLOCK):
        at = base + tl.arange(0, BLOCK)
        x = tl.load(logits + at, mask=at < vocab, other=float("-inf"))
        total += tl.sum(tl.exp(x - peak).to(tl.float64), 0)
    log_total = tl.log(total).to(tl.float32)
    token = tl.load(given + row)
    held = (token >= 0) & (token < vocab)
    chosen = tl.load(logits + token, mask=held, other=float("-inf"))
    tl.store(own + row, (chosen - peak) - log_total)
    if count > 0:
        # Not count.to(): Triton passes an argument of 1 as a constant, which is no tensor.
        wanted = tl.full((), 0.0, tl.float64) + count
        limit, above = threshold(logits, logits, logits, vocab, wanted, True, False, BLOCK)
        ties = count - above.to(tl.int32)
        seen = tl.full((), 0, tl.int32)
        stored = tl.full((), 0, tl.int32)
        for base in range(0, vocab, BLOCK):
            at = base + tl.arange(0, BLOCK)
            inside = at < vocab
            x = tl.load(logits + at, mask=inside, other=float("-inf"))
            kept, seen = kept_entries(order_key(x), inside, limit, ties, seen)
            slot = stored + tl.cumsum(kept.to(tl.int32), 0) - 1
            tl.store(found + row * count + slot, at.to(tl.int64), mask=kept)
            stored += tl.sum(kept.to(tl.int32), 0)
        tl.debug_barrier()
        place = tl.arange(0, COUNT_BLOCK)
        real = place < count
        top_id = tl.load(found + row * count + place, mask=real, other=0)
        likely = tl.load(logits + top_id, mask=real, other=float("-inf"))
        key = tl.where(real, order_key(likely), -1)
        # They were found in ascending order of ids, so of equal ones the earlier comes first.
        ahead = (key[None, :] > key[:, None]) | (
            (key[None, :] == key[:, None]) & (place[None, :] < place[:, None])
        )
        rank = tl.sum(ahead.to(tl.int32), 1)
        tl.store(ids + row * count + rank, top_id, mask=real)
        tl.store(top + row * count + rank, (likely - peak) - log_total, mask=real)


def log_probs(logits: Tensor, given: Tensor, count: int) -> TopLogProbs:
    """reference.log_softmax_row of each row, at its given token and at its reference.top_ids.

    `logits`: [rows, vocab] float32, contiguous, finite.
    `given`: [rows] int64; one outside of the vocabulary gives -inf.
    `count`: at most MOST and vocab.
    """
    rows, vocab = logits.shape
    if not 0 <= count <= min(MOST, vocab):
        raise ValueError(f"count is {count}; it must be in [0, {min(MOST, vocab)}]")
    device = logits.device
    own = torch.empty(rows, dtype=torch.float32, device=device)
    ids = torch.empty(rows, count, dtype=torch.int64, device=device)
    top = torch.empty(rows, count, dtype=torch.float32, device=device)
    if rows:
        _log_probs[(rows,)](
            logits=logits,
            given=given,
            own=own,
            ids=ids,
            top=top,
            found=torch.empty_like(ids),
            vocab=vocab,
            count=count,
            BLOCK=SAMPLING_BLOCK,
            COUNT_BLOCK=triton.next_power_of_2(max(count, 2)),
            num_warps=SAMPLING_WARPS,
        )
    return TopLogProbs(own, ids, top)
