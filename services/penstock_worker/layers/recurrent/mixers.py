"""Recurrent layers: what stands in the attention's place, and the mixers that it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from penstock.model.recurrent_spec import (
    GatedDeltaSpec,
    Mamba1Spec,
    Mamba2Spec,
    RecurrentSpec,
    ShortConvSpec,
)
from penstock_kernels import reference
from penstock_worker.layers.parts import NO_NORM, Norm, NormOfParts, Ops, Parts
from penstock_worker.layers.recurrent.gated_delta import GatedDelta
from penstock_worker.layers.recurrent.interface import Mixer
from penstock_worker.layers.recurrent.mamba1 import Mamba1
from penstock_worker.layers.recurrent.mixer_parts import (
    NAME,
    Convolution,
    decay_rate,
    divided,
    own_part,
)
from penstock_worker.layers.step import Step
from penstock_worker.quantisation.interface import Product

if TYPE_CHECKING:
    from torch import Tensor

# Mamba 2 (Dao and Gu, "Transformers are SSMs", 2024).


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
        norm: Norm = NO_NORM
        if spec.normed:
            norm = GroupNorm(
                parts.ops,
                constant("norm.weight", spec.inner),
                parts.config.norm.eps,
                spec.inner // spec.norm_groups,
            )
        if gathered and spec.normed:
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


class ShortConv:
    """The gated short convolution of LFM2 (Liquid AI, 2025).

    A Mixer. Features are two gates and the input, [rows, 3 * width]: that of the convolution's
    input, that of its result, and what is convolved.
    """

    def __init__(
        self, spec: ShortConvSpec, inputs: Product, conv: Convolution, output: Product
    ) -> None:
        self.spec = spec
        self.conv = conv
        self._inputs = inputs
        self._output = output

    def project(self, hidden: Tensor) -> Tensor:
        return self._inputs(hidden)

    def scan(self, features: Tensor, state: Tensor) -> Tensor:
        gate, _, x = features.float().chunk(3, -1)
        return self.conv(gate * x, divided(state, self.spec)[0])

    def finish(self, mixed: Tensor, features: Tensor) -> Tensor:
        gate = features.chunk(3, -1)[1]
        return self._output((gate.float() * mixed).to(features.dtype))

    @staticmethod
    def load(parts: Parts, layer: int, spec: ShortConvSpec) -> ShortConv:
        prefix, hidden = f"layers.{layer}.{NAME}", parts.config.hidden_size
        return ShortConv(
            own_part(parts, spec)[0],
            parts.product([(f"{prefix}.in_proj", 3 * spec.width)], hidden, bias=spec.bias),
            Convolution.load(parts, prefix, spec, bias=spec.bias),
            parts.summed(f"{prefix}.out_proj", hidden, spec.width, bias=spec.bias),
        )


# A recurrent layer's half that stands in the attention's place.


class RecurrentLayer:
    """Maps [rows, hidden] to [rows, hidden], and moves the sequences' states on."""

    def __init__(self, layer: int, mixer: Mixer) -> None:
        """`layer`: counted from this rank's first layer."""
        self._layer = layer
        self.mixer = mixer

    def __call__(self, hidden: Tensor, step: Step) -> Tensor:
        features = self.mixer.project(hidden)
        mixed = step.states.scan(self._layer, features, self.mixer.scan)
        return self.mixer.finish(mixed, features)

    @staticmethod
    def load(parts: Parts, layer: int, spec: RecurrentSpec) -> RecurrentLayer:
        """Loads layer number `layer` of the model."""
        return RecurrentLayer(layer - parts.shard.layers.start, load_mixer(parts, layer, spec))


AnyMixer = ShortConv | GatedDelta | Mamba2 | Mamba1


def load_mixer(parts: Parts, layer: int, spec: RecurrentSpec) -> AnyMixer:
    """Loads the mixer of layer number `layer` of the model."""
    if isinstance(spec, ShortConvSpec):
        return ShortConv.load(parts, layer, spec)
    if isinstance(spec, GatedDeltaSpec):
        return GatedDelta.load(parts, layer, spec)
    if isinstance(spec, Mamba1Spec):
        return Mamba1.load(parts, layer, spec)
    return Mamba2.load(parts, layer, spec)
