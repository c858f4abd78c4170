"""Gated delta net (Yang et al., "Gated delta networks", 2024), as Qwen3-Next has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.model.recurrent_spec import GatedDeltaSpec
from penstock_kernels import reference
from penstock_worker.layers.norms import Norm, RMSNorm
from penstock_worker.layers.parts import Parts
from penstock_worker.layers.recurrent.parts import (
    NAME,
    Convolution,
    decay_rate,
    divided,
    own_part,
)
from penstock_worker.quantisation.interface import Product

LENGTH_EPS = 1e-6
"""Added to the squares of the lengths that queries and keys are divided by."""


@dataclass(frozen=True)
class DecayingHeads:
    """Constants of each value head, [value_heads] float32."""

    rate: Tensor
    """Rate of decay, negative."""
    time_bias: Tensor


class GatedDelta:
    """A Mixer. Features are queries, keys, values, the output's gate, and for each value head the
    correction's strength and the step in time: [rows, 2 * keys + 2 * values + 2 * value_heads]."""

    def __init__(
        self,
        spec: GatedDeltaSpec,
        inputs: Product,
        conv: Convolution,
        constants: DecayingHeads,
        norm: Norm,
        output: Product,
    ) -> None:
        """`norm`: over each head's result, [rows, value_heads, value_dim] float32."""
        self.spec = spec
        self.conv = conv
        self.constants = constants
        self._inputs = inputs
        self._norm = norm
        self._output = output
        heads = spec.value_heads
        self._sizes = (spec.channels, spec.values, heads, heads)
        self._ones = torch.ones(spec.key_dim)

    def project(self, hidden: Tensor) -> Tensor:
        return self._inputs(hidden)

    def scan(self, features: Tensor, state: Tensor) -> Tensor:
        spec, constants = self.spec, self.constants
        last, matrix = divided(state, spec)
        convolved, _, strength, time = features.float().split(self._sizes, -1)
        convolved = reference.silu(self.conv(convolved, last))
        query, key, value = convolved.split((spec.keys, spec.keys, spec.values), -1)
        mixed = reference.gated_delta(
            # Queries are scaled by key_dim ** -0.5 besides.
            self._by_value_head(query, spec.key_dim**-1.0),
            self._by_value_head(key, spec.key_dim**-0.5),
            value.unflatten(-1, (spec.value_heads, spec.value_dim)),
            reference.sigmoid(strength),
            torch.exp(constants.rate * reference.softplus(time + constants.time_bias)),
            matrix,
        )
        return mixed.flatten(1)

    def finish(self, mixed: Tensor, features: Tensor) -> Tensor:
        heads = (self.spec.value_heads, self.spec.value_dim)
        gate = features.split(self._sizes, -1)[1].float()
        normed = self._norm(mixed.unflatten(-1, heads))
        return self._output((normed.flatten(1) * reference.silu(gate)).to(features.dtype))

    def _by_value_head(self, x: Tensor, scale: float) -> Tensor:
        """Maps [tokens, keys] to vectors of length scale * sqrt(key_dim) for each value head,
        [tokens, value_heads, key_dim]."""
        spec = self.spec
        heads = x.unflatten(-1, (spec.key_heads, spec.key_dim))
        # x / sqrt(sum + eps) is x / sqrt(mean + eps / size), but for the factor.
        normed = reference.rms_norm(heads, self._ones, LENGTH_EPS / spec.key_dim) * scale
        several = spec.value_heads // spec.key_heads
        return normed.repeat(1, several, 1) if spec.tiled else normed.repeat_interleave(several, 1)

    @staticmethod
    def load(parts: Parts, layer: int, spec: GatedDeltaSpec) -> GatedDelta:
        prefix, hidden = f"layers.{layer}.{NAME}", parts.config.hidden_size
        weights, heads = parts.weights, (spec.value_heads,)
        constants = DecayingHeads(
            decay_rate(parts, prefix, spec.value_heads),
            weights.take(f"{prefix}.dt_bias", heads, torch.float32),
        )
        norm = weights.take(f"{prefix}.norm.weight", (spec.value_dim,), torch.float32)
        return GatedDelta(
            own_part(parts, spec)[0],
            parts.product(feature_products(weights.has, prefix, spec), hidden, bias=False),
            Convolution.load(parts, prefix, spec, bias=False),
            constants,
            RMSNorm(parts.ops, norm, parts.config.norm.eps),
            parts.summed(f"{prefix}.out_proj", hidden, spec.values, bias=False),
        )


def feature_products(
    has: Callable[[str], bool], prefix: str, spec: GatedDeltaSpec
) -> list[tuple[str, int]]:
    """The products that make features, with their outputs, of a file that `has` tensors. Files have
    one or two for queries, keys, values and gates, and one or two for strengths and steps in
    time."""
    heads = spec.value_heads
    found = [(f"{prefix}.in_proj_qkv", spec.channels), (f"{prefix}.in_proj_z", spec.values)]
    if has(f"{prefix}.in_proj_qkvz.weight"):
        found = [(f"{prefix}.in_proj_qkvz", spec.channels + spec.values)]
    if has(f"{prefix}.in_proj_ba.weight"):
        return [*found, (f"{prefix}.in_proj_ba", 2 * heads)]
    return [*found, (f"{prefix}.in_proj_b", heads), (f"{prefix}.in_proj_a", heads)]
