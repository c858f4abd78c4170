"""Step 3.7's pictures: square windows of those that are large or long, and the whole.

The rules are those of transformers' image processor, down to how they round. Sizes are (height,
width), pixels.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from penstock.forms.form import ItemRun, PartedForm, Runs
from penstock.forms.geometry import Size, check_ratio

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from penstock.forms.arrays import Arrays


NARROW, LONG = 32, 4
"""A side of fewer pixels, and a picture more than so many times as long as wide: one of both is
made square first."""
OBLONG = 1.5
"""A picture no larger than the whole has windows from this ratio of its sides on."""
LEFT_OVER = 0.2
"""Share of a window from which on what is left of a side becomes one, too."""


class WindowPlan(NamedTuple):
    """size: of the picture when it is made smaller.  cut: to which it is resized before it is cut.
    side: of a window, 0: there are none.  squared: whether black is added first, at the right or
    below."""

    size: Size
    cut: Size
    side: int
    squared: bool

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of windows; (0, 0): the whole alone."""
        if not self.side:
            return 0, 0
        rows, columns = (max(length // self.side, 1) for length in self.cut)
        return rows, columns


class WindowedImages(PartedForm, frozen=True, kw_only=True, tag_field="kind", tag="step3p7"):
    """Step 3.7's: square windows of a picture that is large or long, each resized to one size,
    followed by the whole as a larger square. Nothing keeps its proportions.

    whole, tile: sides of the square and of a window after resizing, pixels.  longest: side to which
    a picture is made smaller first, pixels.  patch: side, pixels.  whole_rows, tile_rows:
    embeddings of each.
    """

    whole: int
    tile: int
    longest: int
    whole_rows: int
    tile_rows: int
    begin: str = "<im_start>"
    end: str = "<im_end>"
    """Around the embeddings of the whole."""
    tile_begin: str = "<patch_start>"
    tile_end: str = "<patch_end>"
    """Around those of a window."""
    row_end: str = "<patch_newline>"
    """The token between the rows of windows."""

    def plan(self, size: Size) -> WindowPlan:
        """How a picture is cut. Raises BadShape for one that is too long."""
        check_ratio(size)
        squared = min(size) < NARROW and max(size) > LONG * min(size)
        if squared:
            size = max(size), max(size)
        if max(size) > self.longest:
            scale = self.longest / max(size)
            size = max(int(size[0] * scale), 1), max(int(size[1] * scale), 1)
        side = self._side(size)
        height, width = (_whole(length, side) for length in size)
        return WindowPlan(size, (height, width), side, squared)

    def _side(self, size: Size) -> int:
        short, long = min(size), max(size)
        if long <= self.whole:
            return short if long / short > OBLONG else 0
        return min(short, self.tile) if long / short > LONG else self.tile

    def runs(self, size: Size) -> Runs:
        runs, end = [], ""
        rows, columns = grid = self.plan(size).grid
        for number in range(rows * columns):
            newline = self.row_end if number and number % columns == 0 else ""
            runs.append(ItemRun(f"{end}{newline}{self.tile_begin}", self.tile_rows))
            end = self.tile_end
        runs.append(ItemRun(f"{end}{self.begin}", self.whole_rows))
        return Runs(tuple(runs), self.end, grid)

    def prepare(self, picture: Image.Image) -> Arrays:
        """The patches of the windows, by rows, then of the whole."""
        from penstock.forms import arrays

        found = self.plan(arrays.size_of(picture))
        if found.squared:
            picture = arrays.squared_below(picture)
        parts: list[np.ndarray] = []
        if found.side:
            cut = arrays.again(picture, found.cut, self.pixels)
            high, wide = (min(found.side, length) for length in found.cut)
            corners = product(range(0, found.cut[0], high), range(0, found.cut[1], wide))
            for top, left in corners:
                window = cut.crop((left, top, left + wide, top + high))
                parts.append(arrays.resized(window, (self.tile, self.tile), self.pixels))
        smaller = arrays.again(picture, found.size, self.pixels)
        parts.append(arrays.resized(smaller, (self.whole, self.whole), self.pixels))
        return arrays.in_patches(parts, self.patch)


def _whole(length: int, side: int) -> int:
    """The multiple of a window's side that a length is resized to; a shorter one stays."""
    if not side or length < side:
        return length
    return side * (length // side + (length % side > LEFT_OVER * side))
