"""Mamba 1 (Gu and Dao, "Mamba: linear-time sequence modeling with selective state spaces",
2023)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from penstock.model.recurrent_spec import Mamba1Spec
from penstock_kernels import reference
from penstock_worker.layers.parts import Norm, Parts, RMSNorm
from penstock_worker.layers.recurrent.mixer_parts import NAME, Convolution, decay_rate, divided
from penstock_worker.quantisation.interface import Product

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SelectiveChannels:
    """Constants of each channel."""

    rate: Tensor
    """Rates of decay of its numbers, negative (A): [inner, state] float32."""
    time_bias: Tensor
    """[inner] float32."""
    skip: Tensor
    """D, [inner] float32."""


@dataclass(frozen=True)
class SelectiveMaps:
    """Makes steps in time, and the maps into and out of the state, of what is convolved."""

    inputs: Product
    """Gives the vector that steps are made of, and both maps: [rows, rank + 2 * state]."""
    times: Product
    """Makes each channel's step, before bias and softplus: [rows, rank] to [rows, inner]."""
    norms: tuple[Norm, Norm, Norm] | None
    """Norms of the vector and of both maps; None: these have none."""
    sizes: tuple[int, int, int]
    """Numbers of the vector and of each map."""
    dtype: torch.dtype
    """Type of what both products are given."""

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Maps [rows, inner] to steps and maps, float32."""
        made = self.inputs(x.to(self.dtype))
        parts = [part.contiguous() for part in made.split(self.sizes, -1)]
        if self.norms is not None:
            parts = [norm(part) for norm, part in zip(self.norms, parts, strict=True)]
        times, into, out_of = parts
        return self.times(times.to(self.dtype)).float(), into.float(), out_of.float()


class Mamba1:
    """A Mixer. Features are what is convolved, and the output's gate: [rows, 2 * inner]."""

    def __init__(
        self,
        spec: Mamba1Spec,
        inputs: Product,
        conv: Convolution,
        selection: SelectiveMaps,
        constants: SelectiveChannels,
        output: Product,
    ) -> None:
        self.spec = spec
        self.conv = conv
        self.constants = constants
        self._inputs = inputs
        self._selection = selection
        self._output = output

    def project(self, hidden: Tensor) -> Tensor:
        return self._inputs(hidden)

    def scan(self, features: Tensor, state: Tensor) -> Tensor:
        constants = self.constants
        last, matrix = divided(state, self.spec)
        x = reference.silu(self.conv(features.chunk(2, -1)[0].float(), last))
        times, into, out_of = self._selection(x)
        step = reference.softplus(times + constants.time_bias)
        return reference.mamba1(x, into, out_of, step, constants.rate, constants.skip, matrix)

    def finish(self, mixed: Tensor, features: Tensor) -> Tensor:
        gate = features.chunk(2, -1)[1].float()
        return self._output((mixed * reference.silu(gate)).to(features.dtype))

    @staticmethod
    def load(parts: Parts, layer: int, spec: Mamba1Spec) -> Mamba1:
        prefix, hidden = f"layers.{layer}.{NAME}", parts.config.hidden_size
        weights = parts.weights
        time_bias = time_bias_name(weights.has, prefix)
        rate = decay_rate(parts, prefix, spec.inner * spec.state)
        small = [(f"{prefix}.x_proj", spec.rank + 2 * spec.state)]
        return Mamba1(
            spec,
            parts.product([(f"{prefix}.in_proj", 2 * spec.inner)], hidden, bias=spec.bias),
            Convolution.load(parts, prefix, spec, bias=spec.conv_bias),
            SelectiveMaps(
                parts.product(small, spec.inner, bias=False),
                parts.product([(f"{prefix}.dt_proj", spec.inner)], spec.rank, bias=False),
                _norms(parts, prefix, spec),
                (spec.rank, spec.state, spec.state),
                weights.dtype,
            ),
            SelectiveChannels(
                rate.view(spec.inner, spec.state),
                weights.take(time_bias, (spec.inner,), torch.float32),
                weights.take(f"{prefix}.D", (spec.inner,), torch.float32),
            ),
            parts.summed(f"{prefix}.out_proj", hidden, spec.inner, bias=spec.bias),
        )


def time_bias_name(has: Callable[[str], bool], prefix: str) -> str:
    """The bias of the product that makes steps in time. In GGUF files, it is called as that of
    other kinds of recurrent layers."""
    own = f"{prefix}.dt_proj.bias"
    return own if has(own) else f"{prefix}.dt_bias"


def _norms(parts: Parts, prefix: str, spec: Mamba1Spec) -> tuple[Norm, Norm, Norm] | None:
    if spec.norms == "none":
        return None

    def norm(name: str, size: int) -> Norm:
        weight = torch.ones(size)
        if spec.norms == "weighed":
            weight = parts.weights.take(f"{prefix}.{name}.weight", (size,), torch.float32)
        return RMSNorm(parts.ops, weight, spec.norm_eps)

    return norm("dt_norm", spec.rank), norm("b_norm", spec.state), norm("c_norm", spec.state)
