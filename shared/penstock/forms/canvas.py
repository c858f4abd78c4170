"""InternVL's pictures, and Cohere's: a canvas of square tiles, and the whole as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from penstock.forms.form import ImageForm, ItemRun, Runs
from penstock.forms.geometry import Size, canvas

if TYPE_CHECKING:
    from PIL import Image

    from penstock.forms.arrays import Arrays


class CanvasImages(ImageForm, frozen=True, kw_only=True, tag_field="kind", tag="internvl"):
    """InternVL's: a picture fills a canvas of square tiles, whose form is the nearest to its own,
    and is followed by the whole of it as one tile.

    tile: side, pixels.  rows: embeddings of a tile.  least, most: tiles of a canvas.  split:
    whether there is a canvas.
    """

    tile: int
    rows: int
    least: int = 1
    most: int = 12
    split: bool = True
    fitting: bool = False
    """Whether the form is the one that enlarges the picture least, in proportion, or, where all are
    smaller than it, shrinks it least, and not the nearest to its own (Command A Vision)."""
    numbered: str = ""
    """Text before each tile of a canvas, followed by its number from 1 on (Aya Vision)."""
    whole: str = ""
    """Text before the whole."""
    tile_end: str = ""
    """Text after each tile, and after the whole. Without any of these texts, all embeddings are one
    run."""

    CHANGES: ClassVar[Mapping[str, str]] = {"crop_to_patches": "split", "max_patches": "most"}

    def grid(self, size: Size) -> tuple[int, int]:
        """(rows, columns) of tiles."""
        if not self.split:
            return 1, 1
        if self.fitting:
            return _fitting(size, self.tile, self.most)
        return canvas(size, self.tile, self.least, self.most)

    def runs(self, size: Size) -> Runs:
        grid = self.grid(size)
        count = grid[0] * grid[1] + (grid != (1, 1))  # one tile is the whole itself
        if not (self.numbered or self.whole or self.tile_end):
            return Runs.of(count * self.rows, grid)
        texts = [f"{self.numbered}{number}" for number in range(1, count)] if self.numbered else []
        texts = [*(texts or [""] * (count - 1)), self.whole]
        ends = ["", *[self.tile_end] * (count - 1)]
        runs = (ItemRun(f"{end}{text}", self.rows) for end, text in zip(ends, texts, strict=True))
        return Runs(tuple(runs), self.tile_end, grid)

    def prepare(self, picture: Image.Image) -> Arrays:
        """The tiles by rows, then the whole."""
        from penstock.forms import arrays

        return arrays.on_canvas(picture, self.grid(arrays.size_of(picture)), self.tile, self.pixels)

    def wrong(self) -> str | None:
        return self._most_is_wrong(self.most, self.least)


def _fitting(size: Size, tile: int, most: int) -> Size:
    """(rows, columns) of the tiles that enlarge the picture least, in proportion, if some are as
    large as it; else of those that shrink it least. Of several the fewest, and then the
    narrowest."""
    height, width = size
    forms = sorted(
        (
            (columns, rows)
            for columns in range(1, most + 1)
            for rows in range(1, most + 1)
            if columns * rows <= most
        ),
        key=lambda form: form[0] * form[1],
    )
    scales = [min(columns * tile / width, rows * tile / height) for columns, rows in forms]
    enlarging = [scale for scale in scales if scale >= 1]
    columns, rows = forms[scales.index(min(enlarging) if enlarging else max(scales))]
    return rows, columns
