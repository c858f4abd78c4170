"""Log-probabilities of a step's tokens, on their device."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_kernels.triton.sampling.log_probs import MOST, TopLogProbs, log_probs

_SIZES = (0, 8, 32, MOST)
"""How many of the likeliest the kernel is asked for: each number is compiled by itself."""

_SORTED_ROWS = 16
"""Rows that are sorted at once, where a kernel can't tell so many."""


def top_log_probs(logits: Tensor, tokens: Tensor, count: int) -> TopLogProbs:
    """Of each row's token, and of its `count` likeliest or some more: a row's first are the same.

    logits: [rows, vocab] float32, contiguous.  tokens: [rows] int64, -1: none.
    """
    vocab = logits.shape[1]
    if count <= MOST:
        size = next(size for size in _SIZES if size >= count)
        return log_probs(logits, tokens, min(size, vocab))
    own = log_probs(logits, tokens, 0).own
    parts = [_sorted(rows, count) for rows in logits.split(_SORTED_ROWS)]
    return TopLogProbs(own, *(torch.cat(each) for each in zip(*parts, strict=True)))


def _sorted(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(ids, log-probabilities) of the likeliest, equal ones by lower id."""
    shifted = logits - logits.amax(-1, keepdim=True)
    total = torch.exp(shifted).sum(-1, keepdim=True, dtype=torch.float64)
    ids = torch.sort(shifted, dim=-1, descending=True, stable=True).indices[:, :count]
    return ids, shifted.gather(1, ids) - torch.log(total).float()
