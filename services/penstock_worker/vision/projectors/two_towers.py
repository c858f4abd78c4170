"""What makes rows of the vectors of two towers, of which the second sees a larger picture, and how
such a picture is read.

Source: DeepSeek-AI, "DeepSeek-VL: towards real-world vision-language understanding", 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from penstock.errors import UnsupportedModel
from penstock.model.projector_spec import MLPProjector, TwoTowersProjector
from penstock.model.tower_spec import TowerSpec, VisionSpec
from penstock_kernels import reference
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.convolutions import Neck, PlaneConvolution
from penstock_worker.vision.layer import TowerProduct
from penstock_worker.vision.picture import Picture, UnfitPicture
from penstock_worker.vision.picture_reading import PIXELS, of_pixels
from penstock_worker.vision.places import lay_out
from penstock_worker.vision.projector import Projector, ProjectorParts
from penstock_worker.vision.rows import RowThreads
from penstock_worker.vision.tower import Tower

LARGE = "large_pixel_values"
STRETCHED = 4
"""Places each way that become one row."""


def _as_one(spec: VisionSpec, second: TowerSpec) -> VisionSpec:
    """The second tower by itself. Its table of positions has the size of its pictures."""
    return VisionSpec(tower=second, projector=MLPProjector(), image_size=spec.second_size)


class TwoTowers(Projector[TwoTowersProjector], of=TwoTowersProjector):
    def __init__(self, projector: TwoTowersProjector, around: ProjectorParts) -> None:
        super().__init__(projector, around)
        spec, second = around.vision, around.vision.second
        if second is None:
            raise UnsupportedModel("two towers are needed, and one is described")
        weights, outputs, threads = around.weights, around.outputs, around.threads
        own = weights.part("second.")
        self._tower = Tower(second, own, threads)
        own.finish()
        channels, half = projector.channels, outputs // 2
        self._necks = [
            Neck(weights, f"projector.{at}", second.hidden_size, channels, projector.norm)
            for at in ("between", "neck")
        ]
        self._smaller = [
            PlaneConvolution(weights, f"projector.smaller.{which}", size, 2 * size, 3, step=2)
            for which, size in enumerate((channels, 2 * channels))
        ]
        self._alpha = weights.take("projector.alpha", (1,))
        self._own = TowerProduct.load(weights, [("projector.own", half)], spec.tower.width)
        self._second = TowerProduct.load(weights, [("projector.beside", half)], 4 * channels)
        self._product = TowerProduct.load(weights, [("projector.out", outputs)], outputs)
        self._alone = _as_one(spec, second)
        self._side = spec.second_size // second.patch
        self._rows = (spec.image_size or 1) // spec.tower.patch

    @property
    def row_work(self) -> int:
        """Multiplications for each row, with its share of the second tower's."""
        places = self._side**2
        towered = self._tower.work(Picture(torch.empty(places, 0), 1, self._side, self._side))
        necks = places * sum(neck.size for neck in self._necks)
        first, second = self._smaller
        smaller = 2 * (STRETCHED * first.size + second.size)
        products = self._own.size + self._second.size + self._product.size
        return (towered + necks) // self._rows**2 + smaller + products

    def read(self, tensors: Mapping[str, np.ndarray]) -> Picture:
        """Returns the picture, with the larger one in `beside`."""
        if LARGE not in tensors:
            raise UnfitPicture(f"a prepared picture has {LARGE} for this model, beside {PIXELS}")
        rest = {name: each for name, each in tensors.items() if name != LARGE}
        picture = of_pixels(rest, self._vision)
        larger = of_pixels({PIXELS: tensors[LARGE]}, self._alone)
        if picture.tiles != 1 or larger.tiles != 1:
            raise UnfitPicture(
                f"{picture.tiles} and {larger.tiles} tiles of a picture; 1 is needed"
            )
        return replace(picture, beside=larger)

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        larger = picture.beside
        if larger is None:
            raise ValueError("the picture lacks the larger one")
        layout = lay_out(larger, self._alone)
        towered = yield from self._tower.pieces(larger, layout, _nothing)
        tiles = towered.unflatten(0, (1, larger.rows, larger.columns))
        found: list[Tensor] = []
        for neck, tile in zip(self._necks, tiles.chunk(2, 3), strict=True):
            made = yield from neck.pieces(tile.contiguous(), threads)
            made = self._stretched(made, (picture.rows, picture.columns))
            for convolution in self._smaller:
                made = yield from convolution.pieces(made, threads)
            found.append(made)
        between, last = found
        seen = (last + between * self._alpha).flatten(0, 2)
        products = ((self._second, seen), (self._own, vectors))
        halves: list[Tensor] = []
        for product, each in products:
            halves.append((yield from threads.mapped(product, each, each=product.size)))
        both = reference.plain_activation(torch.cat(halves, 1), "gelu")
        return (yield from threads.mapped(self._product, both, each=self._product.size))

    @staticmethod
    def _stretched(tiles: Tensor, form: tuple[int, int]) -> Tensor:
        """[1, rows, columns, channels], stretched to STRETCHED times the tower's form."""
        size = [STRETCHED * side for side in form]
        planes = functional.interpolate(tiles.movedim(3, 1), size, mode="bilinear")
        return planes.movedim(1, 3).contiguous()


def _nothing(layer: int, hidden: Tensor) -> Pieces[None]:
    """Follows each of the second tower's layers."""
    yield 0
