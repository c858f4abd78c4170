"""The two ends of a model, embedding and head, whose rows are sharded by token id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from penstock.model.config import ModelConfig
from penstock_kernels import reference
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.parallel.shard import Shard
from penstock_worker.quantisation.interface import Product, Table

if TYPE_CHECKING:
    from torch import Tensor


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


@dataclass(frozen=True)
class LogitsRule:
    """What happens to the head's products, in this order."""

    bias: Tensor | None = None
    """[vocab] float32, of all ranks' columns."""
    multiplier: float = 1.0
    soft_cap: float | None = None
    """Logits x become soft_cap * tanh(x / soft_cap)."""

    @staticmethod
    def of(config: ModelConfig, bias: Tensor | None) -> LogitsRule:
        return LogitsRule(bias, config.logits_multiplier, config.logits_soft_cap)

    def __call__(self, logits: Tensor) -> Tensor:
        """Maps [rows, vocab] float32 to the same shape."""
        if self.bias is not None:
            logits = logits + self.bias
        if self.multiplier != 1.0:
            logits = logits * self.multiplier
        return logits if self.soft_cap is None else reference.soft_cap(logits, self.soft_cap)


class Head:
    """Maps [rows, hidden] to logits, [rows, vocab] float32."""

    def __init__(self, product: Product, shard: Shard, ranks: Ranks, rule: LogitsRule) -> None:
        """`product` computes this rank's columns."""
        self.product = product
        self._rule = rule
        self._sizes = shard.vocab_sizes
        self._ranks = ranks

    def __call__(self, hidden: Tensor) -> Tensor:
        return self._rule(self._ranks.join_columns(self.product(hidden), self._sizes).float())
