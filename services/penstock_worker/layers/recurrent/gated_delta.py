"""Gated delta nets (Yang et al., "Gated delta networks", 2024), as Qwen3-Next has them, and Kimi
delta attention (Kimi Team, "Kimi Linear", 2025), in which each channel decays by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from penstock.model.recurrent_spec import GatedDeltaSpec
from penstock_kernels import reference
from penstock_worker.layers.parts import Norm, Parts, RMSNorm
from penstock_worker.layers.recurrent.mixer_parts import (
    NAME,
    Convolution,
    decay_rate,
    divided,
    own_part,
)
from penstock_worker.quantisation.interface import Product

if TYPE_CHECKING:
    from torch import Tensor

LENGTH_EPS = 1e-6
"""Added to the squares of the lengths that queries and keys are divided by."""


@dataclass(frozen=True)
class DecayingHeads:
    """Constants of each value head, [value_heads] float32, or of each number of its keys where
    these decay by themselves, [value_heads * key_dim]."""

    rate: Tensor
    """Rate of decay, negative."""
    time_bias: Tensor

    @staticmethod
    def load(parts: Parts, prefix: str, spec: GatedDeltaSpec) -> DecayingHeads:
        rate = decay_rate(parts, prefix, spec.value_heads)
        bias = parts.weights.take(f"{prefix}.dt_bias", (spec.times,), torch.float32)
        return DecayingHeads(rate.repeat_interleave(len(bias) // len(rate)), bias)


@dataclass(frozen=True)
class LowRankFeatures:
    """Makes features of which gates and steps in time are made of shorter vectors."""

    inputs: Product
    """Gives what is convolved, the corrections' strengths, and the vectors that steps in time and
    gates are made of."""
    sizes: tuple[int, int, int, int]
    """How many of each."""
    times: Product
    gates: Product

    def __call__(self, x: Tensor) -> Tensor:
        convolved, strength, of_times, of_gates = self.inputs(x).split(self.sizes, -1)
        gates = self.gates(of_gates.contiguous())
        return torch.cat((convolved, gates, strength, self.times(of_times.contiguous())), -1)

    @staticmethod
    def load(parts: Parts, prefix: str, spec: GatedDeltaSpec) -> LowRankFeatures:
        own, _ = own_part(parts, spec)
        names = feature_products(parts.weights.has, prefix, spec)
        return LowRankFeatures(
            parts.product(names, parts.config.hidden_size, bias=False),
            (own.channels, own.value_heads, spec.rank, spec.rank),
            parts.product([(f"{prefix}.in_proj_a", spec.times)], spec.rank, bias=False),
            parts.product([(f"{prefix}.in_proj_z", spec.values)], spec.rank, bias=False),
        )


class GatedDelta:
    """A Mixer. Features are queries, keys, values, the output's gate, for each value head the
    correction's strength, and steps in time: [rows, 2 * keys + 2 * values + value_heads +
    times]."""

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
        self._sizes = (spec.channels, spec.values, heads, spec.times)
        self._ones = torch.ones(spec.key_dim)

    def project(self, hidden: Tensor) -> Tensor:
        return self._inputs(hidden)

    def scan(self, features: Tensor, state: Tensor) -> Tensor:
        spec, constants = self.spec, self.constants
        last, matrix = divided(state, spec)
        convolved, _, strength, time = features.float().split(self._sizes, -1)
        convolved = reference.silu(self.conv(convolved, last))
        query, key, value = convolved.split((spec.keys, spec.keys, spec.values), -1)
        step = time + constants.time_bias
        if spec.lowest:
            decay = torch.exp(spec.lowest * reference.sigmoid(-constants.rate * step))
        else:
            decay = torch.exp(constants.rate * reference.softplus(step))
        mixed = reference.gated_delta(
            # Queries are scaled by key_dim ** -0.5 besides.
            self._by_value_head(query, spec.key_dim**-1.0),
            self._by_value_head(key, spec.key_dim**-0.5),
            value.unflatten(-1, (spec.value_heads, spec.value_dim)),
            reference.sigmoid(strength) * spec.strongest,
            decay.unflatten(-1, (spec.value_heads, -1)),
            matrix,
        )
        return mixed.flatten(1)

    def finish(self, mixed: Tensor, features: Tensor) -> Tensor:
        heads = (self.spec.value_heads, self.spec.value_dim)
        gate = features.split(self._sizes, -1)[1].float()
        normed = self._norm(mixed.unflatten(-1, heads))
        weighed = reference.sigmoid(gate) if self.spec.by_channel else reference.silu(gate)
        return self._output((normed.flatten(1) * weighed).to(features.dtype))

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
        weights = parts.weights
        norm = weights.take(f"{prefix}.norm.weight", (spec.value_dim,), torch.float32)
        eps = parts.config.norm.eps if spec.norm_eps is None else spec.norm_eps
        return GatedDelta(
            own_part(parts, spec)[0],
            LowRankFeatures.load(parts, prefix, spec)
            if spec.rank
            else parts.product(feature_products(weights.has, prefix, spec), hidden, bias=False),
            Convolution.load(parts, prefix, spec, bias=False),
            DecayingHeads.load(parts, prefix, spec),
            RMSNorm(parts.ops, norm, eps),
            parts.summed(f"{prefix}.out_proj", hidden, spec.values, bias=False),
        )


def feature_products(
    has: Callable[[str], bool], prefix: str, spec: GatedDeltaSpec
) -> list[tuple[str, int]]:
    """The products that make features of the hidden state, with their outputs, of a file that `has`
    tensors. Files have one to four for queries, keys, values and gates, and one or two for
    strengths and steps in time. With a rank, what makes gates and steps in time of shorter vectors
    isn't among them."""
    heads = spec.value_heads
    found = [(f"{prefix}.in_proj_qkv", spec.channels)]
    if has(f"{prefix}.in_proj_q.weight"):
        sizes = ("q", spec.keys), ("k", spec.keys), ("v", spec.values)
        found = [(f"{prefix}.in_proj_{each}", size) for each, size in sizes]
    if spec.rank:
        downs = [(f"{prefix}.in_proj_{each}_down", spec.rank) for each in ("a", "z")]
        return [*found, (f"{prefix}.in_proj_b", heads), *downs]
    found.append((f"{prefix}.in_proj_z", spec.values))
    if spec.whole:
        return [*found, (f"{prefix}.in_proj_b", heads), (f"{prefix}.in_proj_a", spec.times)]
    if has(f"{prefix}.in_proj_qkvz.weight"):
        found = [(f"{prefix}.in_proj_qkvz", spec.channels + spec.values)]
    if has(f"{prefix}.in_proj_ba.weight"):
        return [*found, (f"{prefix}.in_proj_ba", 2 * heads)]
    return [*found, (f"{prefix}.in_proj_b", heads), (f"{prefix}.in_proj_a", heads)]
