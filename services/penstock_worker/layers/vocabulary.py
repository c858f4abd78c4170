"""The two ends of a model, embedding and head, whose rows are sharded by token id."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_worker.parallel.ranks import Ranks
from penstock_worker.parallel.shard import Shard
from penstock_worker.quantisation.interface import Product, Table


class TokenEmbedding:
    """Maps token ids, [rows] int64, to [rows, hidden]."""

    def __init__(self, table: Table, shard: Shard, ranks: Ranks) -> None:
        """`table` has the rows of this rank's ids."""
        self._table = table
        self._shard = shard
        self._ranks = ranks

    def __call__(self, tokens: Tensor) -> Tensor:
        if self._ranks.place.tensor == 1:
            return self._table(tokens)
        own = tokens - self._shard.vocab.start
        mine = (own >= 0) & (own < self._table.rows)
        rows = self._table(own.clamp(0, self._table.rows - 1))
        # All other ranks contribute zeros, so the sum is exactly the row.
        return self._ranks.sum(torch.where(mine[:, None], rows, torch.zeros_like(rows)))


class Head:
    """Maps [rows, hidden] to logits, [rows, vocab] float32."""

    def __init__(self, product: Product, shard: Shard, ranks: Ranks) -> None:
        """`product` computes this rank's columns."""
        self.product = product
        self._sizes = shard.vocab_sizes
        self._ranks = ranks

    def __call__(self, hidden: Tensor) -> Tensor:
        return self._ranks.join_columns(self.product(hidden), self._sizes).float()
