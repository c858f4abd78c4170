"""Projectors with a row for each square of patches."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from penstock.model.projector_form import FactorProjector
from penstock.model.projector_spec import (
    AdapterProjector,
    ShuffleProjector,
    SquareMLPProjector,
    SquarePoolProjector,
)
from penstock_kernels import reference
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.layer import TowerNorm, TowerProduct
from penstock_worker.vision.picture import Picture, in_squares
from penstock_worker.vision.picture_reading import Squares
from penstock_worker.vision.projector import Projector, ProjectorParts
from penstock_worker.vision.rows import RowThreads
from penstock_worker.vision.two_products import TwoProducts

Factor = TypeVar("Factor", bound=FactorProjector)


class OfSquares(Projector[Factor]):
    """Makes a row of each square of factor x factor patches."""

    @property
    def squares(self) -> Squares:
        return Squares(self._spec.factor * self._vision.tower.merged)

    def rows(self, picture: Picture) -> int:
        return picture.tiles * picture.per_tile // self._spec.factor**2


class Shuffle(OfSquares[ShuffleProjector], of=ShuffleProjector):
    def __init__(self, spec: ShuffleProjector, around: ProjectorParts) -> None:
        super().__init__(spec, around)
        wide, shape = around.inputs * spec.factor**2, ("projector", around.outputs)
        self._product = TowerProduct.load(around.weights, [shape], wide, bias=False)
        self._work = self._product.size

    @property
    def squares(self) -> Squares:
        return Squares(self._spec.factor, alike=True)

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        """Squares are in order of their rows, and a square's patches too."""
        squares = in_squares(vectors, picture, self._spec.factor)
        return (yield from threads.mapped(self._product, squares, each=self._work))


class SquareMLP(OfSquares[SquareMLPProjector], of=SquareMLPProjector):
    def __init__(self, spec: SquareMLPProjector, around: ProjectorParts) -> None:
        super().__init__(spec, around)
        weights, inputs = around.weights, around.inputs
        wide = inputs * spec.factor**2
        self._norm: TowerNorm | None = None
        if spec.norm is not None:
            size = inputs if spec.merged else wide
            self._norm = TowerNorm(weights, "projector.norm", size, spec.norm)
        self._merging: TowerProduct | None = None
        if spec.merged:
            # The file has a square's vectors number by number: the first of each, the second, ...
            merging = weights.take("projector.merging.weight", (inputs, wide))
            by_patch = merging.unflatten(1, (inputs, -1)).transpose(1, 2).flatten(1)
            self._merging = TowerProduct(by_patch.contiguous(), None)
            wide = inputs
        self._products = TwoProducts(
            weights,
            wide,
            around.outputs,
            inner=spec.inner,
            activation=spec.activation,
            bias=spec.bias,
            gated=spec.gated,
        )
        self._work = self._products.size + (0 if self._merging is None else self._merging.size)

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        factor = self._spec.factor
        normed = self._norm or (lambda x: x)
        if self._merging is None:
            squares = normed(in_squares(vectors, picture, factor))
        else:
            apart = in_squares(normed(vectors), picture, factor)
            squares = yield from threads.mapped(self._merging, apart, each=self._merging.size)
        rows = squares.contiguous()
        return (yield from threads.mapped(self._products, rows, each=self._products.size))


class AdapterMLP(OfSquares[AdapterProjector], of=AdapterProjector):
    def __init__(self, spec: AdapterProjector, around: ProjectorParts) -> None:
        super().__init__(spec, around)
        sizes = [around.inputs * spec.factor**2, spec.inner, spec.inner, around.outputs]
        names = ("projector.adapter.1", "projector.adapter.2", "projector.1")
        *self._inner, self._last = [
            TowerProduct.load(around.weights, [(name, rows)], columns, bias=False)
            for name, columns, rows in zip(names, sizes, sizes[1:], strict=False)
        ]
        self._work = self._last.size + sum(product.size for product in self._inner)

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        squares = in_squares(vectors, picture, self._spec.factor)
        return (yield from threads.mapped(self._of_squares, squares, each=self._work))

    def _of_squares(self, squares: Tensor) -> Tensor:
        for product in self._inner:
            squares = reference.plain_activation(product(squares), "gelu")
        return self._last(squares)


class SquarePool(OfSquares[SquarePoolProjector], of=SquarePoolProjector):
    def __init__(self, spec: SquarePoolProjector, around: ProjectorParts) -> None:
        super().__init__(spec, around)
        weights, inputs = around.weights, around.inputs
        shape = ("projector", around.outputs)
        self._product = TowerProduct.load(weights, [shape], inputs, bias=False)
        # Means are so large that they are standardised in float32.
        self._standard: tuple[Tensor, Tensor] | None = None
        if spec.standardised:
            mean, factor = (
                weights.take(f"projector.std_{name}", (inputs,), torch.float32)
                for name in ("bias", "scale")
            )
            self._standard = mean, factor
        self._ones = torch.ones(inputs, dtype=weights.dtype, device=weights.device)
        self._work = self._product.size

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        factor, size = self._spec.factor, vectors.shape[1]
        squares = in_squares(vectors, picture, factor).unflatten(1, (factor**2, size))
        means = squares.float().mean(1).to(vectors.dtype).float()
        if self._spec.rooted:
            means = means * size**0.5
        if self._standard is not None:
            mean, scale = self._standard
            means = (means - mean) * scale
        rows = reference.rms_norm(means.to(vectors.dtype), self._ones, self._spec.eps)
        return (yield from threads.mapped(self._product, rows, each=self._work))
