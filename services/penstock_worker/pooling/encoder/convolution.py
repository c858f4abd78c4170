"""The convolution of some DeBERTa models: what neighbouring tokens add after the first layer."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.model.config import ModelConfig
from penstock_worker.layers.parts import DecoderOps, LayerNorm
from penstock_worker.layers.per_layer_inputs import Layer
from penstock_worker.layers.step import Step
from penstock_worker.weights.weights import Weights

NEIGHBOURS = 3
"""Rows that a convolution reads: a token's, and those on either side."""


class EmbeddingConvolution:
    """Adds a convolution of embeddings to the first layer's output, and normalises the sum."""

    def __init__(
        self, ops: DecoderOps, weights: Weights, config: ModelConfig, activation: str
    ) -> None:
        size = config.hidden_size
        scale, shift = (
            weights.take(f"encoder.conv.LayerNorm.{part}", (size,)) for part in ("weight", "bias")
        )
        self._norm = LayerNorm(ops, scale, shift, config.norm.eps)
        kernel = weights.take("encoder.conv.conv.weight", (size, size, NEIGHBOURS))
        matrix = kernel.transpose(1, 2).reshape(size, NEIGHBOURS * size).contiguous()
        self._product = ops.product(matrix, weights.take("encoder.conv.conv.bias", (size,)))
        self._ops = ops
        self._activation = activation

    def __call__(self, embedded: Tensor, output: Tensor, positions: Tensor) -> Tensor:
        """`embedded`, `output`: [rows, size], of inputs one after another; `positions`: [rows], 0
        where an input begins, and of padding."""
        begins = (positions == 0)[:, None]
        nothing = embedded.new_zeros(1, embedded.shape[1])
        before = torch.cat((nothing, embedded[:-1])).masked_fill(begins, 0)
        ends = torch.cat((begins[1:], begins.new_ones(1, 1)))
        after = torch.cat((embedded[1:], nothing)).masked_fill(ends, 0)
        found = self._product(torch.cat((before, embedded, after), 1))
        if self._activation == "tanh":
            # By exponentials: torch's own has other bits at the end of a vector loop.
            found = 1 - 2 / ((2 * found).exp() + 1)
        else:
            found = self._ops.activate(found, self._activation, gated=False)
        return self._norm.added(found, output)


class ConvolvedLayer:
    """A Layer followed by the convolution of its input."""

    def __init__(self, inner: Layer, convolution: EmbeddingConvolution) -> None:
        self._inner = inner
        self._convolution = convolution

    def __call__(self, update: Tensor | None, residual: Tensor, step: Step) -> None:
        if step.positions is None:
            raise TypeError("the step has no positions")
        embedded = residual.clone()
        self._inner(update, residual, step)
        residual.copy_(self._convolution(embedded, residual, step.positions))
