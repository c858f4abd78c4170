"""The largest entries of a row, with ties decided."""

from __future__ import annotations

import torch
from torch import Tensor


def top_ids(values: Tensor, count: int) -> Tensor:
    """Ids of the `count` largest values, largest first, equal values by lower id.

    values: [vocab], no NaN.  count: at least 1; more than vocab means vocab.  Returns int64.
    torch.topk alone doesn't say which of several equal values it takes.
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
