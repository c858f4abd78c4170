"""Llama 4's pictures: in their proportions on a canvas of square tiles, and the whole as one.

The rules are those of transformers' image processor, which computes some scales in float32: where
two canvases nearly fit alike, that decides. Sizes are (height, width), pixels.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from penstock.forms.form import ImageForm, ItemRun, Runs
from penstock.forms.geometry import Size

if TYPE_CHECKING:
    from PIL import Image

    from penstock.forms.arrays import Arrays


class FittedImages(ImageForm, frozen=True, kw_only=True, tag_field="kind", tag="llama4"):
    """Llama 4's: a picture lies, in its proportions, at the top left of a black canvas of square
    tiles, and is followed by the whole of it as one tile.

    tile: side, pixels.  rows: embeddings of a tile.  most: tiles of a canvas.
    """

    tile: int
    rows: int
    most: int = 16
    tile_end: str = "<|tile_x_separator|>"
    """Text between the tiles of a row."""
    row_end: str = "<|tile_y_separator|>"
    whole: str = "<|image|>"
    """Begins the whole."""

    CHANGES: ClassVar[Mapping[str, str]] = {"max_patches": "most"}

    def grid(self, size: Size) -> tuple[int, int]:
        """(rows, columns) of tiles; (1, 1): the whole alone."""
        height, width = _best_canvas(size, self.tile, self.most)
        return height // self.tile, width // self.tile

    def runs(self, size: Size) -> Runs:
        rows, columns = self.grid(size)
        runs = []
        if rows * columns > 1:
            runs = [ItemRun("", self.rows)]
            for number in range(1, rows * columns):
                end = self.tile_end if number % columns else self.row_end
                runs.append(ItemRun(end, self.rows))
        runs.append(ItemRun(f"{self.row_end if runs else ''}{self.whole}", self.rows))
        return Runs(tuple(runs), grid=(rows, columns))

    def prepare(self, picture: Image.Image) -> Arrays:
        """The tiles by rows, then the whole. What is on one tile isn't shown twice."""
        from penstock.forms import arrays

        size, side = arrays.size_of(picture), self.tile
        canvas = _best_canvas(size, side, self.most)
        inner = arrays.resized(picture, _fitted(size, canvas, side), self.pixels)
        tiles = [*arrays.cut(arrays.filled(inner, canvas), side)]
        whole = [arrays.resized(picture, (side, side), self.pixels)] if len(tiles) > 1 else []
        return arrays.stacked([*tiles, *whole])

    def wrong(self) -> str | None:
        return self._most_is_wrong(self.most)


def _best_canvas(size: Size, tile: int, most: int) -> Size:
    """The best of all canvases of 1 to `most` tiles: the one that enlarges the picture least, if
    one is as large as it; else the one that shrinks it least. Of several, the smallest."""
    canvases = _canvases(most)
    scales = [
        min(_single(count * tile / side) for count, side in zip(canvas, size, strict=True))
        for canvas in canvases
    ]
    enlarging = [scale for scale in scales if scale >= 1]
    chosen = min(enlarging) if enlarging else max(scales)
    rows, columns = min(
        (canvas for canvas, scale in zip(canvases, scales, strict=True) if scale == chosen),
        key=math.prod,
    )
    return rows * tile, columns * tile


def _fitted(size: Size, canvas: Size, tile: int) -> Size:
    """The picture's size on its canvas, in proportion. It is enlarged up to a tile's side only."""
    within = [max(has, tile) for has in size]
    # What the canvas bounds is a tensor there, and its scale of a single precision.
    single = [side < has for side, has in zip(canvas, within, strict=True)]
    target = [min(pair) for pair in zip(canvas, within, strict=True)]
    high, wide = (
        _single(target[at] / size[at]) if single[at] else target[at] / size[at] for at in (0, 1)
    )
    if _single(wide) < _single(high) if any(single) else wide < high:
        return max(_scaled(size[0], wide, target[0], single=single[1]), 1), target[1]
    return target[0], max(_scaled(size[1], high, target[1], single=single[0]), 1)


def _scaled(length: int, scale: float, most: int, *, single: bool) -> int:
    exact = _single(length * _single(scale)) if single else length * scale
    return min(math.floor(exact), most)


def _single(value: float) -> float:
    """Rounded to float32. A product or quotient of two such numbers, computed in double precision
    and rounded, is the one that float32's own arithmetic gives."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


@lru_cache
def _canvases(most: int) -> tuple[Size, ...]:
    """Rows and columns of tiles, in the order in which transformers compares them."""
    by_ratio: dict[float, list[Size]] = {}
    for count in range(most, 0, -1):
        for rows in range(1, count + 1):
            if count % rows == 0:
                by_ratio.setdefault(rows / (count // rows), []).append((rows, count // rows))
    return tuple(canvas for alike in by_ratio.values() for canvas in alike)
