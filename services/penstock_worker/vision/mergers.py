"""Turns vectors of patches, which are ordered by squares, into a row of the decoder's size for each
square."""

from __future__ import annotations

from torch import Tensor

from penstock.model.projector_spec import GatedMergerProjector, MergerProjector, TwiceProjector
from penstock_kernels import reference
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.layer import TowerNorm, TowerProduct
from penstock_worker.vision.picture import Picture
from penstock_worker.vision.rows import RowThreads
from penstock_worker.weights.weights import Weights


class Merger:
    def __init__(
        self,
        spec: MergerProjector,
        weights: Weights,
        inputs: int,
        outputs: int,
        at: str = "projector",
    ) -> None:
        """`at`: how the tensors' names begin."""
        wide = inputs * spec.side**2
        self._wide = wide
        self._normed = wide if spec.behind else inputs
        self._norm = TowerNorm(weights, f"{at}.norm", self._normed, spec.norm)
        self._first = TowerProduct.load(weights, [(f"{at}.1", wide)], wide)
        self._second = TowerProduct.load(weights, [(f"{at}.2", outputs)], wide)
        self.row_work = self._first.size + self._second.size

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        squares = self._norm(vectors.reshape(-1, self._normed)).view(-1, self._wide)
        return (yield from threads.mapped(self._of_squares, squares, each=self.row_work))

    def _of_squares(self, squares: Tensor) -> Tensor:
        return self._second(reference.plain_activation(self._first(squares), "gelu"))


class GatedMerger:
    def __init__(
        self, spec: GatedMergerProjector, weights: Weights, inputs: int, outputs: int
    ) -> None:
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
        self.row_work = sum(product.size for product in products)

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        squares = vectors.reshape(-1, self._wide)
        return (yield from threads.mapped(self._of_squares, squares, each=self.row_work))

    def _of_squares(self, squares: Tensor) -> Tensor:
        rows = self._norm(self._first(self._merging(squares)))
        rows = self._up(reference.plain_activation(rows, "gelu"))
        return self._down(reference.gated_activation(rows, self._activation))


class TwiceOverSquares:
    """Two products over patches, then two over squares of what they gave."""

    def __init__(self, spec: TwiceProjector, weights: Weights, inputs: int, outputs: int) -> None:
        self._side = spec.side
        wide = outputs * spec.side**2
        self._of_patches = [
            TowerProduct.load(weights, [("projector.1", spec.inner)], inputs, bias=spec.bias),
            TowerProduct.load(weights, [("projector.2", outputs)], spec.inner, bias=spec.bias),
        ]
        bias = spec.square_bias
        self._of_squares = [
            TowerProduct.load(weights, [("projector.squares.1", spec.inner)], wide, bias=bias),
            TowerProduct.load(weights, [("projector.squares.2", outputs)], spec.inner, bias=bias),
        ]
        self._patch_work, self._square_work = (
            sum(product.size for product in products)
            for products in (self._of_patches, self._of_squares)
        )
        self.row_work = self._square_work + spec.side**2 * self._patch_work

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        patches = yield from threads.mapped(self._patches, vectors, each=self._patch_work)
        squares = patches.reshape(len(patches) // self._side**2, -1)
        return (yield from threads.mapped(self._squares, squares, each=self._square_work))

    def _patches(self, vectors: Tensor) -> Tensor:
        first, second = self._of_patches
        return second(reference.plain_activation(first(vectors), "gelu"))

    def _squares(self, squares: Tensor) -> Tensor:
        first, second = self._of_squares
        return second(reference.plain_activation(first(squares), "gelu"))
