"""Recurrent layers: what stands in the attention's place, and the mixers that it is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from penstock.model.recurrent_spec import GatedDeltaSpec, Mamba2Spec, RecurrentSpec, ShortConvSpec
from penstock_kernels import reference
from penstock_worker.layers.parts import NO_NORM, Norm, NormOfParts, Ops, Parts, RMSNorm
from penstock_worker.layers.recurrent.interface import Mixer
from penstock_worker.layers.step import Step
from penstock_worker.parallel.shard import recurrent_shard
from penstock_worker.quantisation.interface import Product

Spec = TypeVar("Spec", bound=RecurrentSpec)
NAME = "recurrent"
"""Name of a layer's module."""


@dataclass(frozen=True)
class Convolution:
    """A causal convolution of each channel by itself."""

    weight: Tensor
    """The kernel's weights, [kernel, channels] float32."""
    bias: Tensor | None
    """What is added to each channel, [channels] float32; None for nothing."""

    def __call__(self, x: Tensor, last: Tensor) -> Tensor:
        """Maps [tokens, channels] to the same shape; `last` as in reference.causal_conv."""
        return reference.causal_conv(x, last, self.weight, self.bias)

    @staticmethod
    def load(parts: Parts, prefix: str, spec: RecurrentSpec, *, bias: bool) -> Convolution:
        name, channels = f"{prefix}.conv", spec.channels
        stored = parts.weights.take(f"{name}.weight", (channels, 1, spec.kernel), torch.float32)
        added = parts.weights.take(f"{name}.bias", (channels,), torch.float32) if bias else None
        return Convolution(stored[:, 0].T.contiguous(), added)


def divided(state: Tensor, spec: RecurrentSpec) -> tuple[Tensor, Tensor]:
    """Returns views of a state, [state_numbers]: the convolution's last inputs, [kernel - 1,
    channels], and the recurrent matrix in its shape."""
    held = (spec.kernel - 1) * spec.channels
    return state[:held].view(spec.kernel - 1, spec.channels), state[held:].view(spec.matrix or (0,))


def own_part(parts: Parts, spec: Spec) -> tuple[Spec, tuple[range, ...]]:
    """Returns this rank's part of a layer, and RecurrentShard.gathered."""
    part = recurrent_shard(spec, parts.shard.place.tensor, parts.shard.place.tensor_rank)
    if not isinstance(part.own, type(spec)):
        raise TypeError(f"the part of {spec} is {part.own}")
    return part.own, part.gathered


def decay_rate(parts: Parts, prefix: str, heads: int) -> Tensor:
    """Returns each head's rate of decay, [heads] float32, negative. A file has it, or the logarithm
    of its size."""
    if parts.weights.has(f"{prefix}.A"):
        return parts.weights.take(f"{prefix}.A", (heads,), torch.float32)
    return -torch.exp(parts.weights.take(f"{prefix}.A_log", (heads,), torch.float32))


# Gated delta net (Yang et al., "Gated delta networks", 2024), as Qwen3-Next has it.

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


# The gated short convolution of LFM2 (Liquid AI, 2025).


class ShortConv:
    """A Mixer. Features are two gates and the input, [rows, 3 * width]: that of the convolution's
    input, that of its result, and what is convolved."""

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


AnyMixer = ShortConv | GatedDelta | Mamba2


def load_mixer(parts: Parts, layer: int, spec: RecurrentSpec) -> AnyMixer:
    """Loads the mixer of layer number `layer` of the model."""
    if isinstance(spec, ShortConvSpec):
        return ShortConv.load(parts, layer, spec)
    if isinstance(spec, GatedDeltaSpec):
        return GatedDelta.load(parts, layer, spec)
    return Mamba2.load(parts, layer, spec)
