"""Llama 3.2 Vision's pictures: in their proportions on a canvas of square tiles.

The rules are those of transformers' image processor, down to how they round. Sizes are (height,
width), pixels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from penstock.forms.form import ImageForm, Runs
from penstock.forms.geometry import Size

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from penstock.forms.arrays import Arrays


class AspectImages(ImageForm, frozen=True, kw_only=True, tag_field="kind", tag="mllama"):
    """A picture lies, in its proportions, at the top left of a black canvas of square tiles.

    tile: side, pixels.  rows: embeddings of a tile; after all of them comes one for the image
    token.  most: tiles of a canvas.
    """

    tile: int
    rows: int
    most: int = 4

    def grid(self, size: Size) -> tuple[int, int]:
        """(rows, columns) of tiles: those that enlarge the picture least, if some are as large as
        it; else those that shrink it least. Of several the fewest."""
        height, width = size
        forms = aspect_forms(self.most)
        scales = [
            min(rows * self.tile / height, columns * self.tile / width) for rows, columns in forms
        ]
        enlarging = [scale for scale in scales if scale >= 1]
        chosen = min(enlarging) if enlarging else max(scales)
        alike = (form for form, scale in zip(forms, scales, strict=True) if scale == chosen)
        return min(alike, key=math.prod)

    def inner(self, size: Size) -> Size:
        """The picture's size on its canvas. It is enlarged up to a tile's side only."""
        canvas = [count * self.tile for count in self.grid(size)]
        high, wide = (
            min(max(has, self.tile), most) for has, most in zip(size, canvas, strict=True)
        )
        by_height, by_width = high / size[0], wide / size[1]
        if by_width < by_height:
            return min(math.floor(size[0] * by_width) or 1, high), wide
        return high, min(math.floor(size[1] * by_height) or 1, wide)

    def runs(self, size: Size) -> Runs:
        return Runs.of(math.prod(self.grid(size)) * self.rows + 1)

    def prepare(self, picture: Image.Image) -> Arrays:
        """The tiles by rows."""
        from penstock.forms import arrays

        size = arrays.size_of(picture)
        rows, columns = grid = self.grid(size)
        inner = arrays.resized(picture, self.inner(size), self.pixels)
        canvas = arrays.filled(inner, (rows * self.tile, columns * self.tile))
        return {arrays.PIXELS: arrays.cut(canvas, self.tile), arrays.GRID: arrays.two(grid)}

    def inputs(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """What ImageForm gives, with tile_grid int32 [2], rows and columns of tiles."""
        from penstock.forms.arrays import GRID, pair

        grid = pair(arrays.get(GRID), "a prepared picture on a canvas has a grid of two int32")
        return super().inputs(arrays) | {"tile_grid": grid}


@lru_cache
def aspect_forms(most: int) -> tuple[tuple[int, int], ...]:
    """(rows, columns) of all canvases of up to so many tiles, in the order in which the tower
    counts them."""
    return tuple(
        (rows, columns) for rows in range(1, most + 1) for columns in range(1, most // rows + 1)
    )
