"""LFM2-VL's pictures: any size in whole squares of patches, and tiles of large ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from penstock.forms.form import ItemRun, PartedForm, Runs
from penstock.forms.geometry import Size, canvas, to_multiple, whole_patches

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from penstock.forms.arrays import Arrays


class NaflexImages(PartedForm, frozen=True, kw_only=True, tag_field="kind", tag="lfm2_vl"):
    """LFM2-VL's: a picture of any size, rounded to whole squares of patches, or, if it is large,
    square tiles of it on a canvas whose form is the nearest to its own, followed by the whole.

    patch: side, pixels.  merge: patches, each way, that become one embedding.  min_rows, max_rows:
    embeddings of the whole.  large: of how many times as many pixels as the whole may have a
    picture is cut.  tile: side, pixels.  least, most: tiles of a canvas.  split: whether there
    are tiles.  whole: whether the whole follows them.
    """

    merge: int
    min_rows: int
    max_rows: int
    tile: int
    large: float = 2.0
    least: int = 2
    most: int = 10
    split: bool = True
    whole: bool = True

    CHANGES: ClassVar[Mapping[str, str]] = {"do_image_splitting": "split", "max_tiles": "most"}

    @property
    def square(self) -> int:
        """Pixels in a row of a square of patches."""
        return self.patch * self.merge

    @property
    def tile_rows(self) -> int:
        """Embeddings of a tile."""
        return (self.tile // self.square) ** 2

    def grid(self, size: Size) -> tuple[int, int]:
        """(rows, columns) of tiles; (0, 0): the whole alone."""
        height, width = (to_multiple(length, self.square, self.patch) for length in size)
        large = height * width > self.max_rows * self.square**2 * self.large
        return canvas(size, self.tile, self.least, self.most) if self.split and large else (0, 0)

    def whole_size(self, size: Size) -> Size:
        """(height, width) of the whole, in pixels. Raises BadShape."""
        side = self.square
        least, most = (rows * side**2 for rows in (self.min_rows, self.max_rows))
        return whole_patches(size, side, least, most, smallest=side)

    def runs(self, size: Size) -> Runs:
        rows, columns = self.grid(size)
        height, width = self.whole_size(size)
        whole = height // self.square * (width // self.square)
        runs = [
            ItemRun(f"<|img_row_{row + 1}_col_{column + 1}|>", self.tile_rows)
            for row in range(rows)
            for column in range(columns)
        ]
        if self.whole or not runs:
            runs.append(ItemRun("<|img_thumbnail|>" if runs else "", whole))
        return Runs(tuple(runs), grid=(rows, columns))

    def prepare(self, picture: Image.Image) -> Arrays:
        """The patches of the tiles, by rows, then of the whole, whose size must be possible even
        where it isn't shown."""
        from penstock.forms import arrays

        size, side = arrays.size_of(picture), self.tile
        rows, columns = self.grid(size)
        whole = self.whole_size(size)
        parts: list[np.ndarray] = []
        if rows:
            canvas_size = rows * side, columns * side
            parts += [*arrays.cut(arrays.resized(picture, canvas_size, self.pixels), side)]
        if self.whole or not rows:
            parts.append(arrays.resized(picture, whole, self.pixels))
        return arrays.in_patches(parts, self.patch)

    def wrong(self) -> str | None:
        return self._most_is_wrong(self.most, self.least)
