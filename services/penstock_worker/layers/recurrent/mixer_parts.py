"""What the mixers of recurrent layers have in common: convolutions, states, and a rank's part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch

from penstock.model.recurrent_spec import GatedDeltaSpec, RecurrentSpec
from penstock_kernels import reference
from penstock_worker.layers.parts import Parts
from penstock_worker.parallel.shard import recurrent_shard

if TYPE_CHECKING:
    from torch import Tensor

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
        if isinstance(spec, GatedDeltaSpec) and parts.weights.has(f"{prefix}.q_conv.weight"):
            return Convolution(_of_things(parts, prefix, spec), None)
        stored = parts.weights.take(f"{name}.weight", (channels, 1, spec.kernel), torch.float32)
        added = parts.weights.take(f"{name}.bias", (channels,), torch.float32) if bias else None
        return Convolution(stored[:, 0].T.contiguous(), added)


def _of_things(parts: Parts, prefix: str, spec: GatedDeltaSpec) -> Tensor:
    """Weights of a file that has those of queries, keys and values apart, [kernel, channels]."""
    sizes = conv_parts(spec)
    names = [(f"{prefix}.{name}.weight", (size, 1, spec.kernel)) for name, size in sizes]
    return parts.weights.take_stacked(names, torch.float32)[:, 0].T.contiguous()


def conv_parts(spec: GatedDeltaSpec) -> list[tuple[str, int]]:
    """Names and channels of the convolutions of a file that has one for each thing."""
    return [("q_conv", spec.keys), ("k_conv", spec.keys), ("v_conv", spec.values)]


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
