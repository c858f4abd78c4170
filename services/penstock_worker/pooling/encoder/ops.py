"""The operations that encoders are written in, and the reference kernels of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from penstock_kernels.reference import encoder as kernels
from penstock_worker.attention.interface import (
    PLAIN_RULE,
    HeadNorms,
    Rotation,
    ScoreRule,
    StepAttention,
)
from penstock_worker.attention.reference import normalised_and_rotated
from penstock_worker.quantisation.interface import Product


@dataclass(frozen=True)
class EncoderStep:
    """The inputs of a step on the device, one after another, then padding if the kernels need
    it."""

    tokens: Tensor
    """Token id of each row, [rows] int64."""
    positions: Tensor
    """Position of each row in its text, [rows] int64."""
    types: Tensor
    """Token type of each row, [rows] int64, where the model has any."""
    attention: StepAttention
    """Attention within each input. The rows of an input have the same bits whatever else is in the
    step."""


class EncoderOps(Protocol):
    """One set of kernels. Tensors are on its device. Results equal those of
    `penstock_kernels.reference.encoder` up to rounding, and an input's result never depends on the
    others (for products see TritonOps)."""

    def product(self, weight: Tensor, bias: Tensor) -> Product:
        """`weight` is [outputs, inputs], `bias` [outputs]."""

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Normalises `x`, [rows, size], over the last dimension."""

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        """Returns layer_norm of x + residual, where the sum is rounded to its dtype."""

    def activate(self, x: Tensor, kind: str) -> Tensor:
        """`kind` is gelu, gelu_tanh, silu or relu."""

    def lay_out(
        self,
        tokens: np.ndarray,
        positions: np.ndarray,
        types: np.ndarray,
        lengths: list[int],
        bias: Tensor | None = None,
        *,
        causal: bool = False,
        seen: list[int] | None = None,
    ) -> EncoderStep:
        """Returns one step.

        `tokens`, `positions`, `types`: [tokens] int64 on the host.
        `lengths`: tokens of each input.
        `bias`: [heads, 2 * positions - 1]; the bias on a score whose key is `d` tokens after the
        query is in column d + positions - 1.
        `causal`: whether tokens see those before them only.
        `seen`: see Inputs.
        """


class TiledProduct:
    """A product over whole row tiles."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.outputs = weight.shape[0]
        self.weight = kernels.lane_padded(weight)
        missing = self.weight.shape[0] - self.outputs
        self.bias = torch.cat((bias, bias.new_zeros(missing))) if missing else bias

    def __call__(self, x: Tensor) -> Tensor:
        out = kernels.tiled_linear(x, self.weight, self.bias)
        return out if out.shape[1] == self.outputs else out[:, : self.outputs].contiguous()


@dataclass(frozen=True)
class ReferenceInputs:
    """StepAttention within the inputs of a step, all of whose tokens see each other."""

    lengths: list[int]
    """Tokens of each input."""
    bias: Tensor | None
    """[heads, longest, longest], or None."""
    seen: list[int] | None = None
    """How many tokens of each input its tokens see; None: all (`Inputs.seen`)."""

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rotation: Rotation | None,
        norms: HeadNorms | None = None,
        rule: ScoreRule = PLAIN_RULE,
    ) -> Tensor:
        query, key = normalised_and_rotated(query, key, rotation, norms)
        return kernels.attend(query, key, value, self.lengths, self.bias, self.seen)


class ReferenceEncoderOps:
    """Plain torch on the CPU. Steps are padded to whole row tiles."""

    def product(self, weight: Tensor, bias: Tensor) -> Product:
        return TiledProduct(weight, bias)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return kernels.layer_norm(x, weight, bias, eps)

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        return kernels.layer_norm(x + residual, weight, bias, eps)

    def activate(self, x: Tensor, kind: str) -> Tensor:
        return kernels.activate(x, kind)

    def lay_out(
        self,
        tokens: np.ndarray,
        positions: np.ndarray,
        types: np.ndarray,
        lengths: list[int],
        bias: Tensor | None = None,
        *,
        causal: bool = False,
        seen: list[int] | None = None,
    ) -> EncoderStep:
        padded = [kernels.pad_tiles(torch.from_numpy(each)) for each in (tokens, positions, types)]
        inputs = ReferenceInputs(lengths, _bias_by_position(bias, max(lengths)), seen)
        return EncoderStep(padded[0], padded[1], padded[2], inputs)


def _bias_by_position(bias: Tensor | None, longest: int) -> Tensor | None:
    """Returns [heads, longest, longest], in which entry (i, j) is the bias of distance j - i."""
    if bias is None:
        return None
    place = torch.arange(longest)
    return bias[:, place[None, :] - place[:, None] + bias.shape[1] // 2]


REFERENCE: EncoderOps = ReferenceEncoderOps()
