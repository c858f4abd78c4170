"""Sheets of square tiles on which a picture lies in its proportions, followed by the whole sheet as
one tile: Phi-4-multimodal's, with the picture at the top left, and Phi-3-vision's, whose longer
side the picture fills.

The rules are those of transformers' image processor and of the makers' of Phi-3-vision, down to how
they round. Sizes are (height, width), pixels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from penstock.forms.form import ImageForm, Runs
from penstock.forms.geometry import BadShape, Size

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from penstock.forms.arrays import Arrays


SMALLEST = 10
"""Pixels that a side of the picture has on its sheet at least."""


class SheetImages(ImageForm, frozen=True, kw_only=True, tag_field="kind", tag="phi4mm"):
    """Phi-4-multimodal's: a picture lies, in its proportions, at the top left of a white sheet of
    square tiles, and is followed by the whole sheet as one tile.

    tile: side, pixels.  patch: side, pixels.  merge: patches, each way, that become one embedding.
    most: tiles of a sheet.
    """

    tile: int
    patch: int
    merge: int = 2
    most: int = 36

    CHANGES: ClassVar[Mapping[str, str]] = {"dynamic_hd": "most"}

    def grid(self, size: Size) -> tuple[int, int]:
        """(rows, columns) of tiles. Raises BadShape."""
        height, width = size
        rows, columns = self._tiles(size)
        if rows * columns <= self.most:
            return rows, columns
        return _nearest(width / height, width * height, self.tile, self.most)

    def _tiles(self, size: Size) -> tuple[int, int]:
        height, width = size
        return math.ceil(height / self.tile), math.ceil(width / self.tile)

    def inner(self, size: Size) -> Size:
        """The picture's size on its sheet. Raises BadShape."""
        (height, width), (rows, columns) = size, self.grid(size)
        high, wide = rows * self.tile, columns * self.tile
        by_width, by_height = wide / width, high / height
        if by_width < by_height:
            found = int(height * by_width), wide
        else:
            found = high, int(width * by_height)
        if min(found) < SMALLEST:
            raise BadShape(
                f"it is {width} × {height}; where its longer side fills {max(rows, columns)} "
                f"tiles, its shorter one has less than {SMALLEST} pixels"
            )
        return found

    def bars(self, size: Size, form: tuple[int, int]) -> list[tuple[int, int]]:
        """Rows of white above and below a picture of that size on its sheet, and columns to the
        left and right of it. form: rows and columns of tiles. Raises ValueError for a picture that
        doesn't lie on such a sheet."""
        missing = [count * self.tile - has for count, has in zip(form, size, strict=True)]
        if min(form) < 1 or math.prod(form) > self.most or min(missing) < 0:
            raise ValueError(
                f"a prepared picture's sheet has 1 to {self.most} tiles, and is as large as it"
            )
        return [self._bars(each) for each in missing]

    def _bars(self, missing: int) -> tuple[int, int]:
        return 0, missing

    def runs(self, size: Size) -> Runs:
        seen = shown(self.inner(size), self.grid(size), self.tile, self.patch)
        return Runs.of(rows_of(seen, self.tile // self.patch, self.merge))

    def prepare(self, picture: Image.Image) -> Arrays:
        """The picture without the white around it."""
        from penstock.forms import arrays

        size = arrays.size_of(picture)
        on_sheet = self._on_sheet(picture, self.inner(size))
        return {arrays.PIXELS: on_sheet[None], arrays.GRID: arrays.two(self.grid(size))}

    def _on_sheet(self, picture: Image.Image, size: Size) -> np.ndarray:
        from penstock.forms.arrays import resized

        return resized(picture, size, self.pixels)

    def inputs(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """What ImageForm gives, with image_size, that of the picture on its sheet, and tile_grid
        int32 [2], rows and columns of tiles, of which the whole is the first."""
        from penstock.forms import arrays as made

        needed = "a prepared picture on a sheet is one, and has a grid of two int32"
        grid, pixels = made.pair(arrays.get(made.GRID), needed), made.pixels_in(arrays)
        if len(pixels) != 1:
            raise ValueError(needed)
        height, width = pixels.shape[1:3]
        sheet = made.on_sheet(pixels[0], self.bars((height, width), (int(grid[0]), int(grid[1]))))
        return {
            "pixel_values": made.tiles_of_sheet(made.numbers(sheet, self.pixels), self.tile),
            "image_size": made.two(self.seen_size((height, width), sheet.shape[:2])),
            "tile_grid": grid,
        }

    def seen_size(self, size: Size, sheet: Size) -> Size:
        """The size at which the tower sees a picture that is so large, on such a sheet."""
        return size

    def wrong(self) -> str | None:
        return self._most_is_wrong(self.most)


class BarredImages(SheetImages, frozen=True, kw_only=True, tag="phi3_v"):
    """Phi-3-vision's: a picture's longer side fills the sheet, and white bars fill the rest at both
    of its sides. They are seen as the picture is.

    Fields as of SheetImages."""

    most: int = 16

    CHANGES: ClassVar[Mapping[str, str]] = {"num_crops": "most"}

    def grid(self, size: Size) -> tuple[int, int]:
        return self._tiles(self.inner(size))

    def inner(self, size: Size) -> Size:
        """The size at which the longer side fills as many tiles as there may be."""
        height, width = size
        ratio = max(size) / min(size)
        along = 1
        while (along + 1) * math.ceil((along + 1) / ratio) <= self.most:
            along += 1
        longer = along * self.tile
        shorter = int(longer / ratio)
        if not shorter:
            raise BadShape(
                f"it is {width} × {height}; where its longer side fills {along} tiles, its shorter "
                "one has no pixel"
            )
        return (shorter, longer) if width >= height else (longer, shorter)

    def _bars(self, missing: int) -> tuple[int, int]:
        return missing // 2, missing - missing // 2

    def runs(self, size: Size) -> Runs:
        rows, columns = self.grid(size)
        side = self.tile // self.patch
        return Runs.of(rows_of((rows * side, columns * side), side, self.merge))

    def _on_sheet(self, picture: Image.Image, size: Size) -> np.ndarray:
        """A high picture is resized as if it lay on its side, by which some bytes differ."""
        from penstock.forms import arrays

        if picture.width >= picture.height:
            return super()._on_sheet(picture, size)
        return arrays.resized_lying(picture, size, self.pixels)

    def seen_size(self, size: Size, sheet: Size) -> Size:
        return sheet


def _nearest(ratio: float, area: int, tile: int, most: int) -> tuple[int, int]:
    """The form whose width by height is nearest to `ratio`; of several, a larger one if the picture
    fills more than half of it."""
    best, nearest = (1, 1), math.inf
    for rows, columns in _forms(most):
        away = abs(ratio - columns / rows)
        if away < nearest or (away == nearest and area > 0.5 * tile * tile * rows * columns):
            best, nearest = (rows, columns), away
    return best


@lru_cache
def _forms(most: int) -> tuple[tuple[int, int], ...]:
    """(rows, columns), by how many tiles they have."""
    found = [(n // columns, columns) for n in range(1, most + 1) for columns in range(1, n + 1)]
    forms = {(rows, columns) for rows, columns in found if rows * columns <= most}
    return tuple(sorted(forms, key=lambda form: (math.prod(form), form)))


def shown(size: Size, form: tuple[int, int], tile: int, patch: int) -> tuple[int, int]:
    """Rows and columns of patches that aren't all white. size: the picture's on its sheet.  form:
    rows and columns of tiles."""
    rows, columns = (
        count * (tile // patch) - (count * tile - has) // patch
        for count, has in zip(form, size, strict=True)
    )
    return rows, columns


def rows_of(seen: tuple[int, int], side: int, merge: int) -> int:
    """Embeddings of a sheet on which so many rows and columns of patches are seen: those of lines,
    each of which a vector ends, one between the sheet and the whole, and the whole's. side: patches
    in a row of a tile."""
    rows, columns = (-(-count // merge) for count in seen)
    whole = side // merge
    return rows * (columns + 1) + 1 + whole * (whole + 1)
