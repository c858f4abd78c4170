"""DeepSeek-OCR's pictures: square tiles, and the whole as a page."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import TYPE_CHECKING

from penstock.forms.form import PartedForm, Runs
from penstock.forms.geometry import Size, canvas, check_ratio

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from penstock.forms.arrays import Arrays


class DocumentImages(PartedForm, frozen=True, kw_only=True, tag_field="kind", tag="deepseek_ocr"):
    """DeepSeek-OCR's: if a picture has a side that is longer than a tile's, square tiles of it on a
    canvas whose form is the nearest to its own; then the whole as a square page, between bars.

    patch: side, pixels.  tile, page: sides, pixels.  tile_rows, page_rows: embeddings of each.
    least, most: tiles of a canvas.  background: colour of the bars.
    """

    tile: int
    page: int
    tile_rows: int
    page_rows: int
    least: int = 2
    most: int = 6
    background: tuple[int, int, int] = (127, 127, 127)
    lines: bool = False
    """Whether a learned vector ends each line of embeddings, where the tiles' lines are those of
    one picture; one always ends the whole."""

    def grid(self, size: Size) -> tuple[int, int]:
        """(rows, columns) of tiles; (0, 0): the page alone. Raises BadShape."""
        check_ratio(size)
        return canvas(size, self.tile, self.least, self.most) if max(size) > self.tile else (0, 0)

    def runs(self, size: Size) -> Runs:
        rows, columns = self.grid(size)
        count = rows * columns * self.tile_rows + self.page_rows + 1
        if self.lines:
            count += rows * isqrt(self.tile_rows) + isqrt(self.page_rows)
        return Runs.of(count, (rows, columns))

    def prepare(self, picture: Image.Image) -> Arrays:
        """The patches of the tiles, by rows, then of the page."""
        from penstock.forms import arrays

        size, side = arrays.size_of(picture), self.tile
        rows, columns = self.grid(size)
        parts: list[np.ndarray] = []
        if rows:
            canvas_size = rows * side, columns * side
            parts += [*arrays.cut(arrays.resized(picture, canvas_size, self.pixels), side)]
        inner = arrays.resized(picture, self._within_page(size), self.pixels)
        page = arrays.coloured((self.page, self.page), self.background)
        bars = (self.page - has for has in inner.shape[:2])
        top, left = (round(each * 0.5) if self.lines else each // 2 for each in bars)
        page[top : top + inner.shape[0], left : left + inner.shape[1]] = inner
        made = arrays.in_patches([*parts, page], self.patch)
        return made | {arrays.GRID: arrays.two((rows, columns))} if self.lines else made

    def _within_page(self, size: Size) -> Size:
        """The picture's size when it is resized, in proportion, to fill a page one way: as Pillow
        has it, and as transformers."""
        height, width = size
        if not self.lines:
            scale = self.page / max(size)
            height, width = round(height * scale), round(width * scale)
        elif width > height:
            height, width = round(height / width * self.page), self.page
        else:
            height, width = self.page, round(width / height * self.page)
        # A picture that is too long for even one pixel the other way, where theirs fail.
        return max(height, 1), max(width, 1)

    def inputs(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """What PartedForm gives, in lines with tile_grid int32 [2], rows and columns of tiles."""
        from penstock.forms.arrays import GRID, pair

        made = super().inputs(arrays)
        if not self.lines:
            return made
        grid = pair(arrays.get(GRID), "a prepared picture in lines has a grid of two int32")
        return made | {"tile_grid": grid}
