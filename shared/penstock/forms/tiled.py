"""Idefics 3's and SmolVLM's pictures: square tiles, and the whole as one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from penstock.forms.form import MAX_EDGE, ImageForm, ItemRun, Runs
from penstock.forms.geometry import Size

if TYPE_CHECKING:
    from PIL import Image

    from penstock.forms.arrays import Arrays


MAX_TILED = 4096
"""Pixels of a side that a tiled picture is resized to at most."""


class TiledImages(ImageForm, frozen=True, kw_only=True, tag_field="kind", tag="idefics3"):
    """Idefics 3's and SmolVLM's: a picture is resized, cut into square tiles, and followed by the
    whole of it as one tile.

    longest_edge: that a picture is resized to.  tile: side of a tile, pixels.  split: whether there
    are tiles but the whole.  rows: embeddings of a tile.
    """

    longest_edge: int
    tile: int
    rows: int
    split: bool = True
    around: str = "<fake_token_around_image>"
    """Begins a tile, and ends the picture."""
    whole: str = "<global-img>"

    CHANGES: ClassVar[Mapping[str, str]] = {
        "do_image_splitting": "split",
        "longest_edge": "longest_edge",
    }

    def grid(self, size: Size) -> tuple[int, int]:
        """(rows, columns) of tiles; (0, 0): the whole alone."""
        if not self.split:
            return 0, 0
        return tiles(whole_tiles(by_longest_edge(size, self.longest_edge), self.tile), self.tile)

    def runs(self, size: Size) -> Runs:
        height, width = self.grid(size)
        runs = [
            ItemRun(f"{newline}{self.around}<row_{row + 1}_col_{column + 1}>", self.rows)
            for row in range(height)
            for column, newline in _columns(width, first_row=not row)
        ]
        newlines = "\n\n" if runs else ""
        runs.append(ItemRun(f"{newlines}{self.around}{self.whole}", self.rows))
        return Runs(tuple(runs), self.around, (height, width))

    def prepare(self, picture: Image.Image) -> Arrays:
        """The tiles by rows, then the whole."""
        from penstock.forms import arrays

        side, size = self.tile, arrays.size_of(picture)
        resized = arrays.again(picture, by_longest_edge(size, self.longest_edge), self.pixels)
        if self.split:
            resized = arrays.again(resized, whole_tiles(arrays.size_of(resized), side), self.pixels)
        whole = resized
        rows, columns = self.grid(size)
        if rows or not self.split:
            whole = arrays.again(resized, (side, side), self.pixels)
        shown = arrays.bytes_in(resized)[: rows * side, : columns * side]
        return arrays.stacked([*arrays.cut(shown, side), arrays.bytes_in(whole)])

    def wrong(self) -> str | None:
        return (
            None if 1 <= self.longest_edge <= MAX_EDGE else f"longest_edge must be 1 to {MAX_EDGE}"
        )


def _columns(width: int, *, first_row: bool) -> list[tuple[int, str]]:
    """A new row begins on a new line."""
    return [(column, "" if column or first_row else "\n") for column in range(width)]


def by_longest_edge(size: Size, edge: int) -> Size:
    """Returns the size in proportion whose longer side has `edge` pixels, and the shorter an even
    number; no side is longer than MAX_TILED."""
    height, width = size
    ratio = width / height
    if width >= height:
        height, width = _even(int(edge / ratio)), edge
    else:
        height, width = edge, _even(int(edge * ratio))
    height, width = max(height, 1), max(width, 1)
    ratio = width / height
    if width >= height and width > MAX_TILED:
        height, width = int(MAX_TILED / ratio), MAX_TILED
    elif height > width and height > MAX_TILED:
        height, width = MAX_TILED, int(MAX_TILED * ratio)
    return max(height, 1), max(width, 1)


def _even(length: int) -> int:
    return length + length % 2


def whole_tiles(size: Size, tile: int) -> Size:
    """Sides that are multiples of `tile`: the longer rounded up, the other in its proportion."""
    height, width = size
    ratio = width / height
    if width >= height:
        width = math.ceil(width / tile) * tile
        height = math.ceil(int(width / ratio) / tile) * tile
    else:
        height = math.ceil(height / tile) * tile
        width = math.ceil(int(height * ratio) / tile) * tile
    return height, width


def tiles(size: Size, tile: int) -> tuple[int, int]:
    """(rows, columns) of tiles of a picture resized by `whole_tiles`; (0, 0): it is one itself."""
    height, width = size
    if height <= tile and width <= tile:
        return 0, 0
    return (height - tile) // tile + 1, (width - tile) // tile + 1
