"""What DeBERTa's layers have to say about distances: made of a table when weights are loaded."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.model.config import EncoderConfig
from penstock.model.disentangled_spec import DisentangledSpec
from penstock_kernels.reference.disentangled import Distances, attention_scale, distance_rows
from penstock_worker.weights.weights import Weights


class DistanceTables:
    """Makes each layer's keys and queries of distances, in float32."""

    def __init__(
        self, config: EncoderConfig, spec: DisentangledSpec, weights: Weights, longest: int
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
            table = torch.nn.functional.layer_norm(
                table, (size,), scale, shift, config.layer_norm_eps
            )
        self._table = table
        self.rows = distance_rows(spec.span, spec.farthest, longest).to(weights.device)

    def of_layer(self, at: str) -> Distances:
        """`at`: what the names of the layer's tensors begin with."""
        spec, prefix = self._spec, "" if self._spec.shared else "pos_"
        suffix = "" if self._spec.shared else "_proj"
        keys, queries = (
            self._made(f"{at}.attention.self.{prefix}{part}{suffix}") if wanted else None
            for part, wanted in (("key", spec.keys), ("query", spec.queries))
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
