"""Convolutions that make one vector of each square of a tower's patches.

Sources: DeepSeek-AI, "DeepSeek-OCR: contexts optical compression", 2025.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from penstock.model.layer_spec import NormSpec
from penstock.model.projector_form import QUARTER
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.layer import TowerNorm, TowerProduct
from penstock_worker.vision.picture import Picture
from penstock_worker.vision.rows import RowThreads
from penstock_worker.weights.weights import Weights


class Neck:
    """Two convolutions without biases, each followed by a norm."""

    def __init__(
        self, weights: Weights, at: str, inputs: int, outputs: int, norm: NormSpec
    ) -> None:
        """at: how the tensors' names begin."""
        sizes = ((inputs, outputs, 1), (outputs, outputs, 3))
        self._each = [
            PlaneConvolution(weights, f"{at}.{which}", *size) for which, size in enumerate(sizes)
        ]
        self._norms = [TowerNorm(weights, f"{at}.norm{which}", outputs, norm) for which in (0, 1)]

    @property
    def size(self) -> int:
        """Multiplications for each place."""
        return sum(each.size for each in self._each)

    def pieces(self, tiles: Tensor, threads: RowThreads) -> Pieces[Tensor]:
        """[tiles, rows, columns, inputs] to [tiles, rows, columns, outputs]."""
        for convolution, norm in zip(self._each, self._norms, strict=True):
            tiles = norm((yield from convolution.pieces(tiles, threads)))
        return tiles


class Convolutions:
    """Two convolutions, each followed by a norm, and two of stride two."""

    def __init__(
        self, weights: Weights, inputs: int, channels: tuple[int, int], outputs: int, norm: NormSpec
    ) -> None:
        """channels: outputs of the first two, and of the third."""
        first, third = channels
        self._neck = Neck(weights, "projector.neck", inputs, first, norm)
        self._smaller = [
            PlaneConvolution(weights, f"projector.smaller.{which}", *sizes, 3, step=2)
            for which, sizes in enumerate(((first, third), (third, outputs)))
        ]

    @property
    def work(self) -> int:
        """Multiplications for each output."""
        neck = QUARTER**2 * self._neck.size
        return neck + QUARTER * self._smaller[0].size + self._smaller[1].size

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        """[patches, inputs] to [tiles, rows, columns, outputs]."""
        tiles = vectors.unflatten(0, (picture.tiles, picture.rows, picture.columns))
        tiles = yield from self._neck.pieces(tiles, threads)
        for convolution in self._smaller:
            tiles = yield from convolution.pieces(tiles, threads)
        return tiles


class PlaneConvolution:
    """A product of what lies around each place of a tile, or around every `step`-th. Beyond the
    edges are zeros."""

    def __init__(
        self,
        weights: Weights,
        name: str,
        inputs: int,
        outputs: int,
        wide: int,
        *,
        step: int = 1,
        bias: bool = False,
    ) -> None:
        weight = weights.take(f"{name}.weight", (outputs, inputs, wide, wide))
        added = weights.take(f"{name}.bias", (outputs,)) if bias else None
        self._product = TowerProduct(weight.permute(0, 2, 3, 1).flatten(1).contiguous(), added)
        self._wide, self._step = wide, step

    @property
    def size(self) -> int:
        """Multiplications for each place."""
        return self._product.size

    def pieces(self, tiles: Tensor, threads: RowThreads) -> Pieces[Tensor]:
        """[tiles, rows, columns, inputs] to [tiles, rows / step, columns / step, outputs]."""
        beyond, step = self._wide // 2, self._step
        filled = functional.pad(tiles, (0, 0, beyond, beyond, beyond, beyond))
        rows, columns = tiles.shape[1:3]
        around = [
            filled[:, top : top + rows : step, left : left + columns : step]
            for top in range(self._wide)
            for left in range(self._wide)
        ]
        form = around[0].shape[:3]
        flat = torch.cat(around, 3).flatten(0, 2)
        made = yield from threads.mapped(self._product, flat, each=self.size)
        return made.unflatten(0, form)
