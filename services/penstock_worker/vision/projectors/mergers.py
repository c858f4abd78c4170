"""Turns vectors of patches, which are ordered by squares, into a row of the decoder's size for each
square."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec
import numpy as np
from torch import Tensor

from penstock.model.projector_spec import (
    GatedMergerProjector,
    MergerProjector,
    SquaresProjector,
    TwiceProjector,
)
from penstock_kernels import reference
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.layer import TowerNorm, TowerProduct
from penstock_worker.vision.picture import Picture
from penstock_worker.vision.picture_reading import read_patches
from penstock_worker.vision.projector import Projector, ProjectorParts
from penstock_worker.vision.rows import RowThreads
from penstock_worker.vision.two_products import TwoProducts

Ordered = TypeVar("Ordered", bound=SquaresProjector)


class OrderedSquares(Projector[Ordered]):
    """Makes a row of each square of patches, which stand in order of these."""

    def read(self, tensors: Mapping[str, np.ndarray]) -> Picture:
        return read_patches(tensors, self._vision, self._spec.side)

    def rows(self, picture: Picture) -> int:
        return picture.tiles * picture.per_tile // self._spec.side**2

    def grid(self, picture: Picture) -> tuple[int, ...]:
        side = self._spec.side
        return picture.tiles, picture.rows // side, picture.columns // side


class Merger(OrderedSquares[MergerProjector], of=MergerProjector):
    def __init__(
        self, spec: MergerProjector, around: ProjectorParts, at: str = "projector"
    ) -> None:
        """`at`: how the tensors' names begin."""
        super().__init__(spec, around)
        inputs = around.vision.tower.hidden_size
        wide = self._wide = inputs * spec.side**2
        self._normed = wide if spec.behind else inputs
        self._norm = TowerNorm(around.weights, f"{at}.norm", self._normed, spec.norm)
        self._products = TwoProducts(around.weights, wide, around.outputs, at=at, inner=wide)
        self._work = self._products.size

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        squares = self._norm(vectors.reshape(-1, self._normed)).view(-1, self._wide)
        return (yield from threads.mapped(self._products, squares, each=self._work))


def load_deepstack(around: ProjectorParts) -> list[Merger]:
    """Returns the projectors of VisionSpec.deepstack_layers. Raises UnsupportedModel for weights
    that don't fit."""
    projector = around.vision.projector
    if not isinstance(projector, MergerProjector):
        return []
    behind = msgspec.structs.replace(projector, behind=True)
    return [
        Merger(behind, around, f"projector.deepstack.{number}")
        for number in range(len(around.vision.deepstack_layers))
    ]


class GatedMerger(OrderedSquares[GatedMergerProjector], of=GatedMergerProjector):
    def __init__(self, spec: GatedMergerProjector, around: ProjectorParts) -> None:
        super().__init__(spec, around)
        weights, inputs, outputs = around.weights, around.inputs, around.outputs
        shape = (outputs, inputs, spec.side, spec.side)
        kernel = weights.take("projector.merging.weight", shape).permute(0, 2, 3, 1).flatten(1)
        bias = weights.take("projector.merging.bias", (outputs,))
        self._wide = kernel.shape[1]
        self._merging = TowerProduct(kernel.contiguous(), bias)
        first, down = [("projector.1", outputs)], [("projector.down_proj", outputs)]
        self._first = TowerProduct.load(weights, first, outputs, bias=False)
        self._norm = TowerNorm(weights, "projector.norm", outputs, spec.norm)
        up = [("projector.gate_proj", spec.inner), ("projector.up_proj", spec.inner)]
        self._up = TowerProduct.load(weights, up, outputs, bias=False)
        self._down = TowerProduct.load(weights, down, spec.inner, bias=False)
        self._activation = spec.activation
        products = (self._merging, self._first, self._up, self._down)
        self._work = sum(product.size for product in products)

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        squares = vectors.reshape(-1, self._wide)
        return (yield from threads.mapped(self._of_squares, squares, each=self._work))

    def _of_squares(self, squares: Tensor) -> Tensor:
        rows = self._norm(self._first(self._merging(squares)))
        rows = self._up(reference.plain_activation(rows, "gelu"))
        return self._down(reference.gated_activation(rows, self._activation))


class TwiceOverSquares(OrderedSquares[TwiceProjector], of=TwiceProjector):
    """Two products over patches, then two over squares of what they gave."""

    def __init__(self, spec: TwiceProjector, around: ProjectorParts) -> None:
        super().__init__(spec, around)
        weights, outputs, inner = around.weights, around.outputs, spec.inner
        self._patches = TwoProducts(weights, around.inputs, outputs, inner=inner, bias=spec.bias)
        self._squares = TwoProducts(
            weights,
            outputs * spec.side**2,
            outputs,
            at="projector.squares",
            inner=inner,
            bias=spec.square_bias,
        )
        self._work = self._squares.size + spec.side**2 * self._patches.size

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        patches = yield from threads.mapped(self._patches, vectors, each=self._patches.size)
        squares = patches.reshape(len(patches) // self._spec.side**2, -1)
        return (yield from threads.mapped(self._squares, squares, each=self._squares.size))
