"""EncoderOps computed by the CUDA kernels."""

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
    """Attention within the inputs of a step."""

    plan: InputPlan
    bias: Tensor | None
    """The bias that EncoderOps.lay_out takes."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return encoder_attention(query, key, value, self.plan, self.bias)


class TritonEncoderOps:
    """The CUDA kernels for one encoder."""

    def __init__(
        self, device: torch.device, dtype: torch.dtype, head_dim: int, *, batch_invariant: bool
    ) -> None:
        """`dtype` is that of weights and activations, `head_dim` the model's. With
        `batch_invariant`, products sum in one order whatever the number of rows, as all other
        operations here do in any case."""
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
        """Copies the inputs to the device in one transfer, without waiting for it."""
        arrays = [tokens, positions, types, *plan_inputs(lengths, self._tiles)]
        sent = self._uploads.send(arrays)
        inputs = TritonInputs(InputPlan(self._tiles, *sent[3:]), bias)
        return EncoderStep(sent[0].long(), sent[1].long(), sent[2].long(), inputs)
