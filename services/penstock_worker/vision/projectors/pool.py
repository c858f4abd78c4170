"""Means of a grid of squares of patches (PoolProjector)."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.model.projector_spec import PoolProjector
from penstock_kernels import reference
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.layer import TowerProduct
from penstock_worker.vision.picture import Picture
from penstock_worker.vision.projector import Projector, ProjectorParts
from penstock_worker.vision.rows import RowThreads


class GridPool(Projector[PoolProjector], of=PoolProjector):
    def __init__(self, spec: PoolProjector, around: ProjectorParts) -> None:
        super().__init__(spec, around)
        weights, inputs = around.weights, around.inputs
        weight = weights.take("projector.weight", (inputs, around.outputs))
        self._product = TowerProduct(weight.t().contiguous(), None)
        # The sum is made in float32, as in the norms of the decoder.
        self._weight = weights.take("projector.norm.weight", (inputs,), torch.float32)
        self._weight += spec.plus_one
        self._work = self._product.size

    def rows(self, picture: Picture) -> int:
        return picture.tiles * self._spec.side**2

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        side, size = self._spec.side, vectors.shape[-1]
        apart = vectors.float().view(
            picture.tiles, side, picture.rows // side, side, picture.columns // side, size
        )
        means = apart.mean((2, 4)).view(-1, size).to(vectors.dtype)
        yield 0
        return self._product(reference.rms_norm(means, self._weight, self._spec.eps))
