"""What scores have to say about how far query and key are apart, made when weights are loaded: of
MPNet's buckets, ALiBi's slopes or DeBERTa's table.

Sources: Song et al., "MPNet", 2020 (a bias as in T5: Raffel et al., 2020); He et al., "DeBERTa",
2021.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from penstock.model.config import ModelConfig
from penstock.model.disentangled_spec import DisentangledSpec
from penstock_kernels.reference.disentangled import Distances, attention_scale, distance_rows
from penstock_worker.weights.weights import Weights

FARTHEST = 128
"""Distance from which on all tokens share MPNet's last bucket."""


def distance_biases(config: ModelConfig, weights: Weights, longest: int) -> Tensor | None:
    """Returns what each distance adds to scores, [heads, 2 * longest - 1], from 1 - longest on;
    None for nothing. `longest`: tokens of an input. Raises UnsupportedModel for a tensor that
    doesn't fit."""
    if config.distance_slopes:
        return by_slope(config.num_heads, longest).to(weights.device, weights.dtype)
    if not config.relative_buckets:
        return None
    shape = (config.relative_buckets, config.num_heads)
    return by_distance(weights.take("encoder.relative_attention_bias.weight", shape), longest)


class DistanceTables:
    """Makes each layer's keys and queries of distances, in float32."""

    def __init__(
        self, config: ModelConfig, spec: DisentangledSpec, weights: Weights, longest: int
    ) -> None:
        """`longest`: tokens of an input. Raises UnsupportedModel for tensors that don't fit."""
        self._config, self._spec, self._weights = config, spec, weights
        size = config.hidden_size
        table = weights.take("encoder.rel_embeddings.weight", (2 * spec.span, size), torch.float32)
        if spec.normed:
            scale, shift = (
                weights.take(f"encoder.LayerNorm.{part}", (size,), torch.float32)
                for part in ("weight", "bias")
            )
            table = torch.nn.functional.layer_norm(table, (size,), scale, shift, config.norm.eps)
        self._table = table
        self.rows = distance_rows(spec.span, spec.farthest, longest).to(weights.device)

    def of_layer(self, layer: int) -> Distances:
        """Returns those of layer number `layer`."""
        spec, prefix = self._spec, "" if self._spec.shared else "pos_"
        keys, queries = (
            self._made(f"layers.{layer}.self_attn.{prefix}{part}_proj") if wanted else None
            for part, wanted in (("k", spec.keys), ("q", spec.queries))
        )
        scale = attention_scale(self._config.head_dim, spec.terms)
        return Distances(self.rows, keys, queries, scale)

    def _made(self, name: str) -> Tensor:
        size = self._config.hidden_size
        matrix = self._weights.take(f"{name}.weight", (size, size), torch.float32)
        bias = self._weights.take(f"{name}.bias", (size,), torch.float32)
        made = torch.nn.functional.linear(self._table, matrix, bias)
        heads = made.unflatten(1, (self._config.num_heads, self._config.head_dim))
        return heads.transpose(0, 1).contiguous()


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
