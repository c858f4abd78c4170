"""DecoderOps computed by the reference kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from penstock.model.layer_spec import FeedForwardSpec
from penstock.model.recurrent_spec import RecurrentSpec
from penstock_kernels import reference
from penstock_worker.layers.experts import RoutedExperts
from penstock_worker.layers.latent_attention import PerHead
from penstock_worker.layers.parts import DecoderOps, LayerExperts, Parts, Recurrence
from penstock_worker.layers.recurrent.mixers import RecurrentLayer
from penstock_worker.quantisation.interface import Product, Table
from penstock_worker.weights.weights import Matrix, plain

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ReferenceProduct:
    """Computes x @ weight.T + bias."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return reference.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class TensorTable:
    """Rows of an unquantised tensor."""

    weight: Tensor
    dtype: torch.dtype | None = None
    """Dtype of the rows; None for the tensor's own."""

    @property
    def rows(self) -> int:
        return self.weight.shape[0]

    def __call__(self, ids: Tensor) -> Tensor:
        return self.weight[ids].to(self.dtype or self.weight.dtype)


class ReferenceOps:
    """Plain torch, on the CPU."""

    def product(self, weight: Matrix, bias: Tensor | None = None) -> Product:
        return ReferenceProduct(plain(weight), bias)

    def per_head(self, weights: Tensor) -> Product:
        return PerHead.of(weights, self.product)

    def table(self, weight: Matrix) -> Table:
        return TensorTable(plain(weight))

    def head(self, weight: Matrix) -> Product:
        return ReferenceProduct(plain(weight), None)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return reference.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return reference.rms_norm(residual.add_(x), weight, eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        return reference.layer_norm(x, weight, bias, eps)

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
    ) -> Tensor:
        return self.layer_norm(residual.add_(x), weight, bias, eps)

    def activate(self, x: Tensor, kind: str, *, gated: bool, limit: float | None = None) -> Tensor:
        if gated:
            return reference.gated_activation(x, kind, limit)
        return reference.plain_activation(x, kind)

    def sparse_gate(self, gate_up: Tensor, share: float) -> Tensor:
        return reference.sparse_gate(gate_up, share)

    def as_large(self, x: Tensor, as_what: Tensor, least: float) -> Tensor:
        own, wanted = (reference.row_mean(each.float() * each.float()) for each in (x, as_what))
        return (x * torch.sqrt(wanted) / torch.sqrt(own.clamp(min=least))).to(x.dtype)

    def experts(self, parts: Parts, feed_forward: FeedForwardSpec, prefix: str) -> LayerExperts:
        return RoutedExperts.load(parts, feed_forward, prefix)

    def recurrence(self, parts: Parts, layer: int, spec: RecurrentSpec) -> Recurrence:
        return RecurrentLayer.load(parts, layer, spec)


REFERENCE: DecoderOps = ReferenceOps()
