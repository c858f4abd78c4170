"""The two ends of a model, whose rows are dealt out by token id."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_worker.layers.ops import Product, Table
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.parallel.shard import Shard


class TokenEmbedding:
    """tokens: [rows] int64 -> [rows, hidden]. table: of this rank's ids."""

    def __init__(self, table: Table, shard: Shard, ranks: Ranks) -> None:
        self._table = table
        self._shard = shard
        self._ranks = ranks

    def __call__(self, tokens: Tensor) -> Tensor:
        if self._ranks.place.tensor == 1:
            return self._table(tokens)
        own = tokens - self._shard.vocab.start
        mine = (own >= 0) & (own < self._table.rows)
        rows = self._table(own.clamp(0, self._table.rows - 1))
        # Everyone else's is zero: the sum is the row, to the bit.
        return self._ranks.sum(torch.where(mine[:, None], rows, torch.zeros_like(rows)))


class Head:
    """[rows, hidden] -> logits [rows, vocab] float32. product: gives this rank's columns."""

    def __init__(self, product: Product, shard: Shard, ranks: Ranks) -> None:
        self.product = product
        self._sizes = shard.vocab_sizes
        self._ranks = ranks

    def __call__(self, hidden: Tensor) -> Tensor:
        return self._ranks.join_columns(self.product(hidden), self._sizes).float()
