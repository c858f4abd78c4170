"""Log-probabilities of sampled tokens, computed on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_kernels.triton.sampling.log_probs import MOST, TopLogProbs, log_probs

_SIZES = (0, 8, 32, MOST)
"""Numbers of top tokens that the kernel is called with. It is compiled for each of them."""

_SORTED_ROWS = 16
"""Rows that are sorted at a time, if more top tokens are requested than the kernel supports."""


def top_log_probs(logits: Tensor, tokens: Tensor, count: int) -> TopLogProbs:
    """Returns the log-probabilities of each row's token and of its `count` most likely ones. There
    may be more of these than asked for, which doesn't change the first.

    `logits` is [rows, vocab] float32, contiguous. `tokens` is [rows] int64, where -1 means none.
    """
    vocab = logits.shape[1]
    if count <= MOST:
        size = next(size for size in _SIZES if size >= count)
        return log_probs(logits, tokens, min(size, vocab))
    own = log_probs(logits, tokens, 0).own
    parts = [_sorted(rows, count) for rows in logits.split(_SORTED_ROWS)]
    return TopLogProbs(own, *(torch.cat(each) for each in zip(*parts, strict=True)))


def _sorted(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns (ids, log-probabilities) of the most likely tokens; of equal ones, the lower id comes
    first."""
    shifted = logits - logits.amax(-1, keepdim=True)
    total = torch.exp(shifted).sum(-1, keepdim=True, dtype=torch.float64)
    ids = torch.sort(shifted, dim=-1, descending=True, stable=True).indices[:, :count]
    return ids, shifted.gather(1, ids) - torch.log(total).float()
