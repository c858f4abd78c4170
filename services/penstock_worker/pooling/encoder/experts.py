"""Experts in the place of an encoder's feed-forward."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.model.layer_spec import ExpertsSpec
from penstock_worker.layers.feed_forward import Router
from penstock_worker.pooling.encoder.ops import EncoderOps
from penstock_worker.quantisation.interface import Product
from penstock_worker.weights.weights import Weights


class EncoderExperts:
    """Maps [rows, size] to the same. All experts compute all rows: so no product's shape depends on
    what other rows have chosen."""

    def __init__(
        self,
        ops: EncoderOps,
        spec: ExpertsSpec,
        weights: Weights,
        at: str,
        size: int,
        activation: str,
    ) -> None:
        """`at`: what the names of the tensors begin with. Raises UnsupportedModel for tensors that
        don't fit."""

        def product(name: str, outputs: int, inputs: int) -> Product:
            matrix = weights.take(f"{at}.{name}.weight", (outputs, inputs))
            return ops.product(matrix, matrix.new_zeros(outputs))

        self._router = Router(spec, product("router", spec.count, size), None)
        self._ups = [product(f"{n}.up", spec.inner, size) for n in range(spec.count)]
        self._downs = [product(f"{n}.down", size, spec.inner) for n in range(spec.count)]
        self._ops = ops
        self._activation = activation

    def __call__(self, hidden: Tensor) -> Tensor:
        shares = self._router(hidden)
        out = torch.zeros_like(hidden, dtype=torch.float32)
        for number, (up, down) in enumerate(zip(self._ups, self._downs, strict=True)):
            made = down(self._ops.activate(up(hidden), self._activation))
            out += shares[:, number, None] * made
        return out.to(hidden.dtype)
