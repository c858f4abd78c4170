"""Mamba 2 (Dao and Gu, "Transformers are SSMs", 2024)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.model.recurrent_spec import Mamba2Spec
from penstock_kernels import reference
from penstock_worker.layers.norms import Norm
from penstock_worker.layers.ops import Ops
from penstock_worker.layers.parts import NormOfParts, Parts
from penstock_worker.layers.recurrent.parts import (
    NAME,
    Convolution,
    decay_rate,
    divided,
    own_part,
)
from penstock_worker.quantisation.interface import Product


@dataclass(frozen=True)
class SelectiveHeads:
    """Constants of each head, [heads] float32."""

    rate: Tensor
    """Rate of decay, negative (A)."""
    time_bias: Tensor
    skip: Tensor
    """D."""


class Mamba2:
    """A Mixer. Features are the output's gate, then what is convolved (inputs, and the maps into
    and out of the state), and a step in time for each head: [rows, inner + channels + heads]."""

    def __init__(
        self,
        spec: Mamba2Spec,
        inputs: Product,
        conv: Convolution,
        constants: SelectiveHeads,
        norm: Norm,
        output: Product,
    ) -> None:
        """`norm`: of the result, [rows, inner] float32."""
        self.spec = spec
        self.conv = conv
        self.constants = constants
        self._inputs = inputs
        self._norm = norm
        self._output = output
        self._sizes = (spec.inner, spec.channels, spec.heads)

    def project(self, hidden: Tensor) -> Tensor:
        return self._inputs(hidden)

    def scan(self, features: Tensor, state: Tensor) -> Tensor:
        spec, constants = self.spec, self.constants
        last, matrix = divided(state, spec)
        _, convolved, time = features.float().split(self._sizes, -1)
        convolved = reference.silu(self.conv(convolved, last))
        maps = spec.groups * spec.state
        x, into, out_of = convolved.split((spec.inner, maps, maps), -1)
        step = reference.softplus(time + constants.time_bias)
        mixed = reference.mamba2(
            x.unflatten(-1, (spec.heads, spec.head_dim)),
            self._by_head(into),
            self._by_head(out_of),
            step.clamp(spec.time_step_min, spec.time_step_max),
            constants.rate,
            constants.skip,
            matrix,
        )
        return mixed.flatten(1)

    def finish(self, mixed: Tensor, features: Tensor) -> Tensor:
        gate = features.split(self._sizes, -1)[0].float()
        normed = self._norm(mixed * reference.silu(gate))
        return self._output(normed.to(features.dtype))

    def _by_head(self, maps: Tensor) -> Tensor:
        """Maps [tokens, groups * state] to [tokens, heads, state]."""
        spec = self.spec
        by_group = maps.unflatten(-1, (spec.groups, spec.state))
        return by_group.repeat_interleave(spec.heads // spec.groups, 1)

    @staticmethod
    def load(parts: Parts, layer: int, spec: Mamba2Spec) -> Mamba2:
        prefix, hidden = f"layers.{layer}.{NAME}", parts.config.hidden_size

        def constant(name: str, size: int) -> Tensor:
            return parts.weights.take(f"{prefix}.{name}", (size,), torch.float32)

        features = spec.inner + spec.channels + spec.heads
        own, gathered = own_part(parts, spec)
        norm: Norm = GroupNorm(
            parts.ops,
            constant("norm.weight", spec.inner),
            parts.config.norm.eps,
            spec.inner // spec.norm_groups,
        )
        if gathered:
            norm = NormOfParts(norm, parts.ranks, gathered)
        return Mamba2(
            own,
            parts.product([(f"{prefix}.in_proj", features)], hidden, bias=spec.bias),
            Convolution.load(parts, prefix, spec, bias=spec.conv_bias),
            SelectiveHeads(
                decay_rate(parts, prefix, spec.heads),
                constant("dt_bias", spec.heads),
                constant("D", spec.heads),
            ),
            norm,
            parts.summed(f"{prefix}.out_proj", hidden, spec.inner, bias=spec.bias),
        )


class GroupNorm:
    """A norm over equal parts of [rows, inner], each by itself."""

    def __init__(self, ops: Ops, weight: Tensor, eps: float, size: int) -> None:
        """`weight`: [inner] float32. `size`: numbers of a part."""
        self._ops = ops
        self._weight = weight
        self._eps = eps
        self._ones = torch.ones(size, device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        in_parts = x.unflatten(-1, (-1, len(self._ones)))
        normed = self._ops.rms_norm(in_parts, self._ones, self._eps)
        return normed.flatten(1) * self._weight

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        return self(residual.add_(x))
