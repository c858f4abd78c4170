"""What makes lines of rows of a sheet's tiles: squares of patches or their means, learned vectors
between lines and parts, and two products (SheetProjector).

Sources: Microsoft, "Phi-3 technical report", 2024, and "Phi-4-mini technical report", 2025.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from penstock.forms import sheets
from penstock.model.projector_spec import SheetProjector
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.picture import Picture, UnfitPicture, squares_of
from penstock_worker.vision.picture_reading import MAX_SIDE, PIXELS, TILES, of_pixels, only
from penstock_worker.vision.projector import Projector, ProjectorParts
from penstock_worker.vision.projectors.anyres import SIZE
from penstock_worker.vision.rows import RowThreads
from penstock_worker.vision.two_products import TwoProducts


class Sheets(Projector[SheetProjector], of=SheetProjector):
    def __init__(self, spec: SheetProjector, around: ProjectorParts) -> None:
        super().__init__(spec, around)
        weights, wide = around.weights, spec.width(around.inputs)
        self._made = TwoProducts(weights, wide, around.outputs)
        self._newline = weights.take("projector.newline", (1, 1, 1, wide)).view(wide)
        self._between = weights.take("projector.between", (1, 1, wide)).view(1, wide)
        self._work = self._made.size

    def read(self, tensors: Mapping[str, np.ndarray]) -> Picture:
        """The whole of a sheet and its tiles."""
        pixels, size, grid = only(tensors, PIXELS, SIZE, TILES)
        plain = of_pixels({PIXELS: pixels}, self._vision)
        for name, each in ((SIZE, size), (TILES, grid)):
            if each.shape != (2,) or each.dtype != np.int32 or not 1 <= each.min() <= MAX_SIDE:
                raise UnfitPicture(
                    f"{name} is {each.dtype} of shape {each.shape}; 2 int32 are needed"
                )
        tile, (rows, columns) = plain.rows * self._vision.tower.patch, grid.tolist()
        missing = grid.astype(np.int64) * tile - size
        if plain.tiles != 1 + rows * columns or missing.min() < 0 or missing.max() >= tile:
            raise UnfitPicture(
                f"a picture of {size[1]} x {size[0]} pixels on {rows} x {columns} tiles of {tile} "
                f"has {plain.tiles} with the whole"
            )
        if self._spec.whole:
            if missing.any():
                raise UnfitPicture(
                    f"{SIZE} is {size.tolist()}; all of {rows} x {columns} tiles is seen"
                )
            return replace(plain, form=(rows, columns))
        seen = self._shown(size.tolist(), (rows, columns))
        side = plain.rows
        shown = [
            (min(side, seen[0] - row * side), min(side, seen[1] - column * side))
            for row in range(rows)
            for column in range(columns)
        ]
        return replace(plain, form=(rows, columns), shown=((side, side), *shown))

    def _shown(self, size: tuple[int, int], form: tuple[int, int]) -> tuple[int, int]:
        """Returns the rows and columns of patches on a sheet that others see."""
        vision = self._vision
        return sheets.shown(size, form, vision.image_size or 1, vision.tower.patch)

    def rows(self, picture: Picture) -> int:
        return sheets.rows_of(seen_on_sheet(picture), picture.rows, self._spec.factor)

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        tiles = vectors.unflatten(0, (picture.tiles, picture.rows, picture.columns))
        factor = self._spec.factor
        squares = squares_of(tiles, factor)
        if self._spec.whole:
            made = squares.flatten(1)
        else:
            made = squares.float().mean(1).to(vectors.dtype)
        form = (picture.tiles, picture.rows // factor, picture.columns // factor)
        cells = made.unflatten(0, form)
        sheet = cells[1:].unflatten(0, picture.form).transpose(1, 2).flatten(2, 3).flatten(0, 1)
        high, wide = (-(-count // factor) for count in seen_on_sheet(picture))
        lines = [self._in_lines(sheet[:high, :wide]), self._between, self._in_lines(cells[0])]
        return (yield from threads.mapped(self._made, torch.cat(lines), each=self._work))

    def _in_lines(self, picture: Tensor) -> Tensor:
        """The vectors of [rows, columns, inputs] as lines, each of which a learned one ends."""
        ends = self._newline.expand(len(picture), 1, -1)
        return torch.cat((picture, ends), 1).flatten(0, 1)


def seen_on_sheet(picture: Picture) -> tuple[int, int]:
    """Rows and columns of patches of all tiles of a sheet that are seen, as of one picture."""
    last = picture.shown[-1] if picture.shown else (picture.rows, picture.columns)
    down, across = picture.form
    return (down - 1) * picture.rows + last[0], (across - 1) * picture.columns + last[1]
