"""EncoderOps computed by the reference kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock_kernels.reference import encoder as kernels
from penstock_worker.pooling.encoder.ops import EncoderOps, EncoderStep
from penstock_worker.quantisation.interface import Product


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
    """Attention within the inputs of a step."""

    lengths: list[int]
    """Tokens of each input."""
    bias: Tensor | None
    """[heads, longest, longest], or None."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return kernels.attend(query, key, value, self.lengths, self.bias)


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
        lengths: Sequence[int],
        bias: Tensor | None,
    ) -> EncoderStep:
        padded = [kernels.pad_tiles(torch.from_numpy(each)) for each in (tokens, positions, types)]
        inputs = ReferenceInputs(list(lengths), _bias_by_position(bias, max(lengths)))
        return EncoderStep(padded[0], padded[1], padded[2], inputs)


def _bias_by_position(bias: Tensor | None, longest: int) -> Tensor | None:
    """Returns [heads, longest, longest], in which entry (i, j) is the bias of distance j - i."""
    if bias is None:
        return None
    place = torch.arange(longest)
    return bias[:, place[None, :] - place[:, None] + bias.shape[1] // 2]


REFERENCE: EncoderOps = ReferenceEncoderOps()
