"""The convolution of some DeBERTa models: what neighbouring tokens add behind the first layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from penstock_worker.pooling.encoder.ops import EncoderOps
from penstock_worker.weights.weights import Weights

NEIGHBOURS = 3
"""Rows that a convolution reads: a token's, and those on either side."""


class EmbeddingConvolution:
    """Adds a convolution of embeddings to the first layer's output, and normalises the sum."""

    def __init__(
        self,
        ops: EncoderOps,
        weights: Weights,
        size: int,
        activation: str,
        added: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        """`added`: the norm of a sum."""
        kernel = weights.take("encoder.conv.conv.weight", (size, size, NEIGHBOURS))
        matrix = kernel.transpose(1, 2).reshape(size, NEIGHBOURS * size).contiguous()
        self._product = ops.product(matrix, weights.take("encoder.conv.conv.bias", (size,)))
        self._ops = ops
        self._activation = activation
        self._added = added

    def __call__(self, embedded: Tensor, output: Tensor, positions: Tensor) -> Tensor:
        """`embedded`, `output`: [rows, size], of inputs one after another; `positions`: [rows], 0
        where an input begins, and of padding."""
        begins = (positions == 0)[:, None]
        nothing = embedded.new_zeros(1, embedded.shape[1])
        before = torch.cat((nothing, embedded[:-1])).masked_fill(begins, 0)
        ends = torch.cat((begins[1:], begins.new_ones(1, 1)))
        behind = torch.cat((embedded[1:], nothing)).masked_fill(ends, 0)
        found = self._product(torch.cat((before, embedded, behind), 1))
        if self._activation == "tanh":
            # By exponentials: torch's own has other bits at the end of a vector loop.
            found = 1 - 2 / ((2 * found).exp() + 1)
        else:
            found = self._ops.activate(found, self._activation)
        return self._added(found, output)
