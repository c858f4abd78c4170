"""Samples one token from one row of logits, adjusted before; and the log-probabilities of such a
row."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

_NUCLEUS_GUESSES = (64, 1024)
"""Sizes tried for the nucleus before the whole vocabulary is sorted."""


class SamplingCuts(NamedTuple):
    """What restricts a row's distribution."""

    temperature: float = 1.0
    """Above 0."""
    top_k: int = 0
    """Number of most likely tokens that remain; 0 for all."""
    top_p: float = 1.0
    """In (0, 1]; 1 is off."""
    min_p: float = 0.0
    """Least probability of a token, as a part of the highest; 0 for any."""


def sample_row(logits: Tensor, cuts: SamplingCuts, draw: float) -> int:
    """Returns the token that `draw`, in [0, 1), falls on.

    `logits` is [vocab] float32. -inf marks tokens that can't be sampled; at least one value is
    finite, and none is NaN or +inf.

    The distribution is restricted in the order temperature, top_k, top_p (the smallest set of most
    likely tokens that holds top_p of what is left), min_p (at least min_p of the most likely); of
    equal values, lower ids are kept. The token is found by inverting the cumulative sum in id
    order, in float64.
    """
    ids = _top_k(logits, cuts.top_k)
    scaled = logits.double() if ids is None else logits[ids].double()
    weights = torch.exp((scaled - scaled.max()) / cuts.temperature)
    if cuts.top_p < 1.0:
        kept = _nucleus(weights, cuts.top_p)
        ids = kept if ids is None else ids[kept]
        weights = weights[kept]
    if cuts.min_p > 0.0:
        weights = torch.where(weights >= cuts.min_p * weights.max(), weights, 0.0)
    place = _inverse_cumulative(weights, draw)
    return place if ids is None else int(ids[place])


def _top_k(logits: Tensor, top_k: int) -> Tensor | None:
    """Returns the ids that top_k keeps, ascending; None for all."""
    if not 0 < top_k < logits.shape[0]:
        return None
    return top_ids(logits, top_k).sort().values


def _nucleus(weights: Tensor, top_p: float) -> Tensor:
    """Returns the indices of the largest weights that hold top_p of their sum, ascending."""
    wanted = top_p * float(weights.sum())
    size = weights.shape[0]
    for guess in (*_NUCLEUS_GUESSES, size):
        places = top_ids(weights, min(guess, size))
        held = torch.cumsum(weights[places], 0)
        if float(held[-1]) >= wanted or places.shape[0] == size:
            break
    count = int((held < wanted).sum()) + 1
    return places[:count].sort().values


def _inverse_cumulative(weights: Tensor, draw: float) -> int:
    """Returns the first index whose cumulative weight exceeds draw * total. Its own weight is above
    0."""
    cumulative = torch.cumsum(weights, 0)
    total = float(cumulative[-1])
    place = int(torch.searchsorted(cumulative, draw * total, right=True))
    if place < weights.shape[0]:
        return place
    return int(weights.nonzero()[-1])  # draw * total was rounded up to total


def top_ids(values: Tensor, count: int) -> Tensor:
    """Returns the ids of the `count` largest values, largest first; of equal values the lower id
    first.

    `values` is [vocab] without NaN. `count` is at least 1; more than vocab means vocab. Returns
    int64. torch.topk alone doesn't specify which of several equal values it takes.
    """
    if count < values.shape[0]:
        threshold = torch.topk(values, count).values[-1]
        above = (values > threshold).nonzero().flatten()
        level = (values == threshold).nonzero().flatten()
        ids = torch.cat((above, level[: count - above.shape[0]])).sort().values
    else:
        ids = torch.arange(values.shape[0])
    order = torch.sort(values[ids], descending=True, stable=True).indices
    return ids[order]


def log_softmax_row(logits: Tensor) -> Tensor:
    """logits - log(sum(exp(logits))), float32, [vocab].

    `logits` is [vocab]. Computes one row at a time: the order of the sum depends on the shape,
    which is the same for every row.
    """
    shifted = logits.float() - logits.max().float()
    total = torch.exp(shifted).sum(dtype=torch.float64)
    return shifted - math.log(float(total))
