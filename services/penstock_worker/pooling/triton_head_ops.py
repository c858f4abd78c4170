"""Operations of heads on CUDA."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_kernels.triton.rowwise.activation import activate
from penstock_worker.layers.triton_ops import TritonOps
from penstock_worker.quantisation.interface import Product


class TritonHeadOps:
    """Float32 products of a head, for all inputs of a step at once."""

    def __init__(self, device: torch.device, *, batch_invariant: bool) -> None:
        self._products = TritonOps(device, torch.float32, batch_invariant=batch_invariant)

    def product(self, weight: Tensor, bias: Tensor | None = None) -> Product:
        return self._products.product(weight, bias)

    def activate(self, x: Tensor, kind: str) -> Tensor:
        return activate(x, kind)
