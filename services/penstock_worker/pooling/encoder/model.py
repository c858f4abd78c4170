"""A bidirectional encoder like BERT: post-norm layers over learned positions.

Sources: Devlin et al., "BERT", 2019; Liu et al., "RoBERTa", 2019; Sanh et al., "DistilBERT", 2019;
Song et al., "MPNet", 2020 (relative attention bias as in T5: Raffel et al., 2020); Zhang et al.,
"mGTE", 2024 (rotary positions, gates); Clark et al., "ELECTRA", 2020, and Lan et al., "ALBERT",
2020 (small embeddings, shared layers); He et al., "DeBERTa", 2021 (disentangled attention).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from penstock.model.config import EncoderConfig
from penstock_kernels import reference
from penstock_kernels.reference.disentangled import Distances, attend_disentangled
from penstock_worker.adapters.interface import ProductAdapters
from penstock_worker.attention.interface import Rotation
from penstock_worker.layers.reference_ops import TensorTable
from penstock_worker.layers.rotary import Rotary
from penstock_worker.pooling.encoder.convolution import EmbeddingConvolution
from penstock_worker.pooling.encoder.distances import DistanceTables
from penstock_worker.pooling.encoder.experts import EncoderExperts
from penstock_worker.pooling.encoder.ops import REFERENCE, EncoderOps, EncoderStep
from penstock_worker.quantisation.interface import Product, Table
from penstock_worker.weights.weights import Weights

FARTHEST = 128
"""Distance from which on all tokens share MPNet's last bucket."""


class EncoderNorm:
    """The layer norm of rows."""

    def __init__(self, ops: EncoderOps, weights: Weights, name: str, size: int, eps: float) -> None:
        self.weight = weights.take(f"{name}.weight", (size,))
        self.bias = weights.take(f"{name}.bias", (size,))
        self.eps = eps
        self._ops = ops

    def __call__(self, x: Tensor) -> Tensor:
        return self._ops.layer_norm(x, self.weight, self.bias, self.eps)

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        """Returns the norm of x + residual."""
        return self._ops.add_layer_norm(x, residual, self.weight, self.bias, self.eps)


class _Layer:
    """Maps [rows, hidden] to the same shape."""

    def __init__(
        self,
        ops: EncoderOps,
        config: EncoderConfig,
        weights: Weights,
        number: int,
        adapters: ProductAdapters | None,
        distances: Distances | None,
    ) -> None:
        at = config.layer_at(number)
        self.experts: EncoderExperts | None = None
        size, eps = config.hidden_size, config.layer_norm_eps
        attention, inner = f"{at}.attention", config.intermediate_size

        def dense(names: list[str], outputs: int, inputs: int, *, bias: bool = True) -> Product:
            matrix = weights.take_stacked([(f"{name}.weight", (outputs, inputs)) for name in names])
            added = matrix.new_zeros(matrix.shape[0])
            if bias:
                added = weights.take_stacked([(f"{name}.bias", (outputs,)) for name in names])
            product = ops.product(matrix, added)
            if adapters is None:
                return product
            return adapters.adapted(product, [(name, outputs) for name in names], inputs)

        gated, wide, biases = config.gated, inner * (2 if config.gated else 1), config.biases
        parts = [f"{attention}.self.{part}" for part in ("query", "key", "value")]
        self.qkv = dense(parts, size, size, bias=biases)
        self.mixed = dense([f"{attention}.output.dense"], size, size, bias=biases)
        self.attention_norm = EncoderNorm(ops, weights, f"{attention}.output.LayerNorm", size, eps)
        if config.experts is not None and config.has_experts(number):
            name, kind = f"{at}.experts", config.activation
            self.experts = EncoderExperts(ops, config.experts, weights, name, size, kind)
        else:
            if weights.has(f"{at}.intermediate.up.weight"):
                halves = [f"{at}.intermediate.{part}" for part in ("up", "gate")]
                self.up = dense(halves, inner, size, bias=False)
            else:
                self.up = dense([f"{at}.intermediate.dense"], wide, size, bias=not gated)
            self.down = dense([f"{at}.output.dense"], size, inner, bias=biases)
        self.norm = EncoderNorm(ops, weights, f"{at}.output.LayerNorm", size, eps)
        self._ops = ops
        self._distances = distances
        self._heads = (3, config.num_heads, config.head_dim)
        self._activation = config.activation
        self._gated = gated

    def __call__(
        self,
        hidden: Tensor,
        step: EncoderStep,
        lengths: list[int],
        rotation: Rotation | None = None,
        seen: list[int] | None = None,
    ) -> Tensor:
        query, key, value = self.qkv(hidden).unflatten(1, self._heads).unbind(1)
        if rotation is not None:
            query, key = (reference.apply_rope(each, *rotation.rows) for each in (query, key))
        if self._distances is None:
            mixed = step.attention.attend(0, query, key, value, None)
        else:
            mixed = attend_disentangled(query, key, value, lengths, self._distances, seen)
        hidden = self.attention_norm.added(self.mixed(mixed.flatten(1)), hidden)
        fed = self.down(self._inner(hidden)) if self.experts is None else self.experts(hidden)
        return self.norm.added(fed, hidden)

    def _inner(self, hidden: Tensor) -> Tensor:
        up = self.up(hidden)
        if not self._gated:
            return self._ops.activate(up, self._activation)
        up, gate = up.chunk(2, -1)  # in this order
        return self._ops.activate(gate.contiguous(), self._activation) * up


class EncoderModel:
    """Loads its weights when it is constructed, and is read-only from then on. It may be called
    from several threads if the kernels may be."""

    def __init__(
        self,
        config: EncoderConfig,
        weights: Weights,
        ops: EncoderOps = REFERENCE,
        *,
        longest: int,
        adapters: ProductAdapters | None = None,
    ) -> None:
        """`ops` are the kernels for the device of the weights; `longest`: tokens of an input;
        `adapters`: those of rows.
        Raises UnsupportedModel for weights that don't fit the configuration."""
        self.config = config
        self._ops = ops
        size, table = config.row_of_embedding, config.first_position + config.max_position
        at, eps = "embeddings", config.layer_norm_eps
        words = weights.take(f"{at}.word_embeddings.weight", (config.vocab_size, size))
        self.words: Table = TensorTable(words)
        if adapters is not None:
            self.words = adapters.embedding(self.words)
        self.rotary: Rotary | None = None
        self.positions: Tensor | None = None
        if config.position_table:
            self.positions = weights.take(f"{at}.position_embeddings.weight", (table, size))
        elif config.rope is not None:
            self.rotary = Rotary.load(config.rope, weights, longest)
        self.types: Tensor | None = None
        if config.token_types:
            shape = (config.token_types, size)
            self.types = weights.take(f"{at}.token_type_embeddings.weight", shape)
        self.norm = EncoderNorm(ops, weights, f"{at}.LayerNorm", size, eps)
        self.projection: Product | None = None
        if config.embedding_size:
            name, outputs = f"{at}.projection", config.hidden_size
            matrix = weights.take(f"{name}.weight", (outputs, size))
            self.projection = ops.product(matrix, weights.take(f"{name}.bias", (outputs,)))
        self.bias: Tensor | None = None
        if config.relative_buckets:
            shape = (config.relative_buckets, config.num_heads)
            buckets = weights.take("encoder.relative_attention_bias.weight", shape)
            self.bias = by_distance(buckets, longest)
        elif config.distance_slopes:
            self.bias = by_slope(config.num_heads, longest).to(weights.device, weights.dtype)
        self.convolution: EmbeddingConvolution | None = None
        tables: DistanceTables | None = None
        if config.disentangled is not None:
            tables = DistanceTables(config, config.disentangled, weights, longest)
            kind = config.disentangled.convolution
            if kind:
                hidden = config.hidden_size
                added = EncoderNorm(ops, weights, "encoder.conv.LayerNorm", hidden, eps).added
                self.convolution = EmbeddingConvolution(ops, weights, hidden, kind, added)
        names = [config.layer_at(number) for number in range(config.num_layers)]
        layers: dict[str, _Layer] = {}
        for number, name in enumerate(names):
            if name not in layers:
                distances = None if tables is None else tables.of_layer(name)
                layers[name] = _Layer(ops, config, weights, number, adapters, distances)
        self.layers = [layers[name] for name in names]

    def hidden(
        self,
        tokens: np.ndarray,
        types: np.ndarray,
        lengths: list[int],
        layer_done: Callable[[], None],
        seen: list[int] | None = None,
    ) -> Tensor:
        """Returns the last layer's output, [rows, hidden]; rows are the tokens and, if the kernels
        need it, padding.

        `tokens`, `types`: [tokens] int64, one input after another.
        `lengths`: tokens of each input.
        `layer_done`: called after each layer.
        `seen`: see Inputs.
        """
        positions = np.concatenate([np.arange(length) for length in lengths])
        positions += self.config.first_position
        step = self._ops.lay_out(tokens, positions, types, lengths, self.bias, seen=seen)
        hidden, rotation = self.words(step.tokens), None
        if self.positions is not None:
            hidden = hidden + self.positions[step.positions]
        if self.rotary is not None:
            rotation = self.rotary.at(step.positions)
        if self.types is not None:
            hidden = hidden + self.types[step.types]
        hidden = self.norm(hidden)
        if self.projection is not None:
            hidden = self.projection(hidden)
        embedded = hidden
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden, step, lengths, rotation, seen)
            if number == 0 and self.convolution is not None:
                hidden = self.convolution(embedded, hidden, step.positions)
            layer_done()
        return hidden


def by_distance(buckets: Tensor, positions: int) -> Tensor:
    """Returns [heads, 2 * positions - 1]: what each distance, from 1 - positions on, adds to a
    score."""
    distance = torch.arange(1 - positions, positions)
    bucket = relative_bucket(distance, buckets.shape[0])
    return buckets[bucket.to(buckets.device)].t().contiguous()


def by_slope(heads: int, positions: int) -> Tensor:
    """Returns [heads, 2 * positions - 1] float32: what ALiBi takes off a score for each distance,
    from 1 - positions on, in either direction. A head's slope is a power of two (Press et al.,
    "Train short, test long", 2022); those of a number of heads that is no power of two lie between
    them."""
    whole = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (head + 1) / whole) for head in range(whole)]
    slopes += [2.0 ** (-4 * (2 * head + 1) / whole) for head in range(heads - whole)]
    distance = torch.arange(1 - positions, positions)
    return torch.tensor(slopes)[:, None] * -distance.abs()


def relative_bucket(distance: Tensor, buckets: int) -> Tensor:
    """Returns T5's bucket of each distance. Near distances have a bucket each, farther ones share
    buckets on a logarithmic scale."""
    half = buckets // 2
    ahead = (distance > 0).long() * half
    near = half // 2
    apart = distance.abs()
    ratio = torch.log(apart.clamp(min=1).float() / near) / math.log(FARTHEST / near)
    shared = (near + (ratio * (half - near)).long()).clamp(max=half - 1)
    return ahead + torch.where(apart < near, apart, shared)
