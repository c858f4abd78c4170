"""The largest entries of a row, with a defined order of equal ones."""

from __future__ import annotations

import torch
from torch import Tensor


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
