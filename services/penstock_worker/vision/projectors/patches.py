"""Projectors with a row for each patch."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.model.projector_spec import MLPProjector, PlainProjector
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.layer import TowerProduct
from penstock_worker.vision.picture import Picture
from penstock_worker.vision.projector import Projector, ProjectorParts
from penstock_worker.vision.rows import RowThreads
from penstock_worker.vision.two_products import TwoProducts


class MLP(Projector[MLPProjector], of=MLPProjector):
    def __init__(self, spec: MLPProjector, around: ProjectorParts) -> None:
        super().__init__(spec, around)
        self._products = TwoProducts(
            around.weights,
            around.inputs,
            around.outputs,
            activation=spec.activation,
            bias=spec.bias,
        )
        self._work = self._products.size

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        return (yield from threads.mapped(self._products, vectors, each=self._work))


class Plain(Projector[PlainProjector], of=PlainProjector):
    ENDS = 1

    def __init__(self, spec: PlainProjector, around: ProjectorParts) -> None:
        super().__init__(spec, around)
        shape = ("projector", around.outputs)
        self._product = TowerProduct.load(around.weights, [shape], around.inputs)
        self._work = self._product.size

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        rows = yield from threads.mapped(self._product, vectors, each=self._work)
        return torch.cat((rows, rows.new_zeros(1, rows.shape[1])))
