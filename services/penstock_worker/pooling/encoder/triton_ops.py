"""The CUDA kernels as EncoderOps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock_kernels.triton.attention.encoder import InputPlan, encoder_attention, plan_inputs
from penstock_kernels.triton.rowwise import activation, layer_norm
from penstock_kernels.triton.tiles import AttentionTiles, encoder_tiles
from penstock_worker.forward.uploads import Uploads
from penstock_worker.layers.triton_ops import TritonOps
from penstock_worker.pooling.encoder.ops import EncoderStep
from penstock_worker.quantisation.interface import Product


@dataclass(frozen=True)
class TritonInputs:
    """plan: of the step's inputs.  bias: as EncoderOps.lay_out has it."""

    plan: InputPlan
    bias: Tensor | None

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return encoder_attention(query, key, value, self.plan, self.bias)


class TritonEncoderOps:
    """dtype: of weights and activations.  head_dim: of the model.  batch_invariant: products add in
    one order whatever the number of rows, as everything else here does anyway."""

    def __init__(
        self, device: torch.device, dtype: torch.dtype, head_dim: int, *, batch_invariant: bool
    ) -> None:
        self._products = TritonOps(device, dtype, batch_invariant=batch_invariant)
        self._tiles: AttentionTiles = encoder_tiles(head_dim, dtype)
        self._uploads = Uploads(device)

    def product(self, weight: Tensor, bias: Tensor) -> Product:
        return self._products.product(weight, bias)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return layer_norm.layer_norm(x, weight, bias, eps)

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        return layer_norm.add_layer_norm(x, residual, weight, bias, eps)

    def activate(self, x: Tensor, kind: str) -> Tensor:
        return activation.activate(x, kind)

    def lay_out(
        self,
        tokens: np.ndarray,
        positions: np.ndarray,
        types: np.ndarray,
        lengths: Sequence[int],
        bias: Tensor | None,
    ) -> EncoderStep:
        """One copy to the device, which nobody waits for."""
        arrays = [tokens, positions, types, *plan_inputs(lengths, self._tiles)]
        sent = self._uploads.send(arrays)
        inputs = TritonInputs(InputPlan(self._tiles, *sent[3:]), bias)
        return EncoderStep(sent[0].long(), sent[1].long(), sent[2].long(), inputs)
