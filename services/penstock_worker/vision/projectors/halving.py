"""Convolutions that go two places at a time, and a product (HalvingProjector).

Source: StepFun, "Step 3.7 Flash", 2026.
"""

from __future__ import annotations

from torch import Tensor

from penstock.model.projector_form import QUARTER
from penstock.model.projector_spec import HalvingProjector
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.convolutions import PlaneConvolution
from penstock_worker.vision.layer import TowerProduct
from penstock_worker.vision.picture import Picture
from penstock_worker.vision.picture_reading import Squares
from penstock_worker.vision.projector import Projector, ProjectorParts
from penstock_worker.vision.rows import RowThreads


class Halving(Projector[HalvingProjector], of=HalvingProjector):
    PARTED = ORDERED = True

    def __init__(self, spec: HalvingProjector, around: ProjectorParts) -> None:
        super().__init__(spec, around)
        weights, inputs, outputs = around.weights, around.inputs, around.outputs
        self._smaller = [
            PlaneConvolution(
                weights, f"projector.halving.{which}", size, 2 * size, 3, step=2, bias=True
            )
            for which, size in enumerate((inputs, 2 * inputs))
        ]
        self._product = TowerProduct.load(
            weights, [("projector", outputs)], 4 * inputs, bias=spec.bias
        )

        first, second = self._smaller
        self._work = QUARTER * first.size + second.size + self._product.size

    @property
    def squares(self) -> Squares:
        return Squares(QUARTER)

    def rows(self, picture: Picture) -> int:
        return picture.tiles * picture.per_tile // QUARTER**2

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        tiles = vectors.unflatten(0, (picture.tiles, picture.rows, picture.columns))
        for convolution in self._smaller:
            tiles = yield from convolution.pieces(tiles, threads)
        rows = tiles.flatten(0, 2)
        return (yield from threads.mapped(self._product, rows, each=self._product.size))
