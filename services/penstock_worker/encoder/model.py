"""A bidirectional encoder of BERT's kind: post-norm layers over learned positions.

Source: Devlin et al., "BERT", 2019; Liu et al., "RoBERTa", 2019; Sanh et al., "DistilBERT", 2019;
Song et al., "MPNet", 2020 (relative attention bias as in T5: Raffel et al., 2020).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from penstock.model_config import EncoderConfig
from penstock_kernels.reference import encoder as ops
from penstock_worker.weights import Weights

FARTHEST = 128
"""Distance from which on MPNet's buckets are one."""


class _Dense:
    """x @ weight.T + bias, over whole row tiles."""

    def __init__(self, weights: Weights, names: list[str], outputs: int, inputs: int) -> None:
        matrix = weights.take_stacked([(f"{name}.weight", (outputs, inputs)) for name in names])
        bias = weights.take_stacked([(f"{name}.bias", (outputs,)) for name in names])
        self.outputs = matrix.shape[0]
        self.weight = ops.lane_padded(matrix)
        missing = self.weight.shape[0] - self.outputs
        self.bias = torch.cat((bias, bias.new_zeros(missing))) if missing else bias

    def __call__(self, x: Tensor) -> Tensor:
        out = ops.tiled_linear(x, self.weight, self.bias)
        return out if out.shape[1] == self.outputs else out[:, : self.outputs].contiguous()


class _Norm:
    def __init__(self, weights: Weights, name: str, size: int, eps: float) -> None:
        self.weight = weights.take(f"{name}.weight", (size,))
        self.bias = weights.take(f"{name}.bias", (size,))
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias, self.eps)


class _Layer:
    """hidden: [rows, hidden] -> the same."""

    def __init__(self, config: EncoderConfig, weights: Weights, number: int) -> None:
        at, size, eps = f"encoder.layer.{number}", config.hidden_size, config.layer_norm_eps
        attention = f"{at}.attention"
        parts = [f"{attention}.self.{part}" for part in ("query", "key", "value")]
        self.qkv = _Dense(weights, parts, size, size)
        self.mixed = _Dense(weights, [f"{attention}.output.dense"], size, size)
        self.attention_norm = _Norm(weights, f"{attention}.output.LayerNorm", size, eps)
        self.up = _Dense(weights, [f"{at}.intermediate.dense"], config.intermediate_size, size)
        self.down = _Dense(weights, [f"{at}.output.dense"], size, config.intermediate_size)
        self.norm = _Norm(weights, f"{at}.output.LayerNorm", size, eps)
        self._heads = (3, config.num_heads, config.head_dim)
        self._activation = config.activation

    def __call__(self, hidden: Tensor, lengths: list[int], bias: Tensor | None) -> Tensor:
        query, key, value = self.qkv(hidden).unflatten(1, self._heads).unbind(1)
        mixed = ops.attend(query, key, value, lengths, bias).flatten(1)
        hidden = self.attention_norm(self.mixed(mixed) + hidden)
        inner = ops.activate(self.up(hidden), self._activation)
        return self.norm(self.down(inner) + hidden)


class EncoderModel:
    """Takes its weights when it is made; read-only from then on, and callable from several threads.

    Raises UnsupportedModel for weights that don't fit the configuration.
    """

    def __init__(self, config: EncoderConfig, weights: Weights) -> None:
        self.config = config
        size, table = config.hidden_size, config.first_position + config.max_position
        at = "embeddings"
        self.words = weights.take(f"{at}.word_embeddings.weight", (config.vocab_size, size))
        self.positions = weights.take(f"{at}.position_embeddings.weight", (table, size))
        self.types: Tensor | None = None
        if config.token_types:
            shape = (config.token_types, size)
            self.types = weights.take(f"{at}.token_type_embeddings.weight", shape)
        self.norm = _Norm(weights, f"{at}.LayerNorm", size, config.layer_norm_eps)
        self.buckets: Tensor | None = None
        if config.relative_buckets:
            shape = (config.relative_buckets, config.num_heads)
            self.buckets = weights.take("encoder.relative_attention_bias.weight", shape)
        self.layers = [_Layer(config, weights, number) for number in range(config.num_layers)]

    def hidden(
        self,
        tokens: np.ndarray,
        types: np.ndarray,
        lengths: list[int],
        layer_done: Callable[[], None],
    ) -> Tensor:
        """The last layer's output, [rows, hidden] (rows: the tokens, then padding to whole tiles).

        tokens, types: [tokens] int64, the inputs one after the other.  lengths: of each.
        layer_done: called after each layer.
        """
        positions = np.concatenate([np.arange(length) for length in lengths])
        positions += self.config.first_position
        hidden = self.words[torch.from_numpy(tokens)]
        hidden = hidden + self.positions[torch.from_numpy(positions)]
        if self.types is not None:
            hidden = hidden + self.types[torch.from_numpy(types)]
        hidden = self.norm(ops.pad_tiles(hidden))
        bias = self._bias(max(lengths))
        for layer in self.layers:
            hidden = layer(hidden, lengths, bias)
            layer_done()
        return hidden

    def _bias(self, longest: int) -> Tensor | None:
        """[heads, longest, longest]; entry (i, j) depends on j - i alone."""
        if self.buckets is None:
            return None
        place = torch.arange(longest)
        bucket = relative_bucket(place[None, :] - place[:, None], self.config.relative_buckets)
        return self.buckets[bucket].permute(2, 0, 1).contiguous()


def relative_bucket(distance: Tensor, buckets: int) -> Tensor:
    """T5's bucket of each distance: near ones have their own, farther ones share, by logarithm."""
    half = buckets // 2
    ahead = (distance > 0).long() * half
    near = half // 2
    apart = distance.abs()
    ratio = torch.log(apart.clamp(min=1).float() / near) / math.log(FARTHEST / near)
    shared = (near + (ratio * (half - near)).long()).clamp(max=half - 1)
    return ahead + torch.where(apart < near, apart, shared)
