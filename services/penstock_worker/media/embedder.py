"""The layers after Gemma 3n's towers (EmbedderProjector, NormedTwiceProjector)."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.model.projector_spec import NormedTwiceProjector
from penstock.model.sound_projector_spec import EmbedderProjector
from penstock_kernels import reference
from penstock_worker.vision.layer import TowerProduct
from penstock_worker.weights.weights import Weights


class EmbedderRows:
    """Maps vectors, [vectors, inputs], to rows, [rows, outputs], and so tokens of the tower's own
    vocabulary."""

    def __init__(
        self,
        spec: EmbedderProjector | NormedTwiceProjector,
        weights: Weights,
        inputs: int,
        outputs: int,
        tokens: list[int],
    ) -> None:
        """tokens: whose rows are needed, `own`. Raises UnsupportedModel for weights that don't
        fit."""
        self.norm = weights.take("projector.norm.weight", (inputs,))
        self._product = TowerProduct.load(weights, [("projector", outputs)], inputs, bias=False)
        self._ones = torch.ones(outputs, dtype=weights.dtype, device=weights.device)
        self._eps = spec.eps
        norm = weights.take("projector.own_norm.weight", (inputs,))
        table = weights.take("projector.embedding.weight", (spec.vocab, inputs))
        ids = torch.tensor(tokens, device=weights.device)
        self.own = self.rows(table[ids], norm).split(1)

    @property
    def row_work(self) -> int:
        """Multiplications for each row."""
        return self._product.size

    def rows(self, vectors: Tensor, norm: Tensor) -> Tensor:
        normed = reference.rms_norm(vectors, norm, self._eps)
        return reference.rms_norm(self._product(normed), self._ones, self._eps)
