"""Two products with an activation between them, as most projectors have them."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_kernels import reference
from penstock_worker.vision.layer import TowerProduct
from penstock_worker.weights.weights import Weights


class TwoProducts:
    """Maps [rows, inputs] to [rows, outputs]. Loads its weights when it is constructed."""

    def __init__(
        self,
        weights: Weights,
        inputs: int,
        outputs: int,
        *,
        at: str = "projector",
        inner: int = 0,
        activation: str = "gelu",
        bias: bool = True,
        gated: bool = False,
    ) -> None:
        """at: what the tensors' names begin with.  inner: outputs of the first product; 0: as many
        as of the second.  gated: as SquareMLPProjector has it.  Raises UnsupportedModel for weights
        that don't fit."""
        inner = inner or outputs
        seen = inner // 2 if gated else inner
        self._first = TowerProduct.load(weights, [(f"{at}.1", inner)], inputs, bias=bias)
        self._second = TowerProduct.load(weights, [(f"{at}.2", outputs)], seen, bias=bias)
        self._activation, self._gated = activation, gated
        self.size = self._first.size + self._second.size
        """Multiplications for each row."""

    def __call__(self, vectors: Tensor) -> Tensor:
        first = self._first(vectors)
        if not self._gated:
            return self._second(reference.plain_activation(first, self._activation))
        up, gate = first.chunk(2, 1)
        return self._second(reference.gated_activation(torch.cat((gate, up), 1), "silu"))
