"""Pixtral's and LightOnOCR's pictures: any size in whole patches, row by row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from penstock.forms.form import MAX_EDGE, ImageForm, ItemRun, Runs
from penstock.forms.geometry import Size

if TYPE_CHECKING:
    from PIL import Image

    from penstock.forms.arrays import Arrays


class RowImages(ImageForm, frozen=True, kw_only=True, tag_field="kind", tag="pixtral"):
    """Pixtral's: any size in whole patches, no larger than a square; a token ends each row of
    embeddings, but for LightOnOCR's.

    longest_edge: side of the square, pixels.  patch: of pixels, each way, that become one
    embedding.
    """

    longest_edge: int
    patch: int
    row_end: str = "[IMG_BREAK]"
    """Text between rows; empty: there is none."""
    end: str = "[IMG_END]"
    """Ends the last row."""

    CHANGES: ClassVar[Mapping[str, str]] = {"longest_edge": "longest_edge"}

    def grid(self, size: Size) -> tuple[int, int]:
        """(rows, columns) of embeddings: of a picture that is made smaller, in proportion, until no
        side is longer than longest_edge; a patch that isn't full counts."""
        height, width = size
        ratio = max(height / self.longest_edge, width / self.longest_edge)
        if ratio > 1:
            height, width = math.floor(height / ratio), math.floor(width / ratio)
        # A picture too long for even one pixel the other way still has a patch of it.
        rows, columns = (max((side - 1) // self.patch + 1, 1) for side in (height, width))
        return rows, columns

    def runs(self, size: Size) -> Runs:
        rows, columns = self.grid(size)
        if not self.row_end:
            return Runs((ItemRun("", rows * columns),), self.end)
        runs = [ItemRun(self.row_end if row else "", columns) for row in range(rows)]
        return Runs(tuple(runs), self.end)

    def prepare(self, picture: Image.Image) -> Arrays:
        from penstock.forms import arrays

        rows, columns = self.grid(arrays.size_of(picture))
        size = rows * self.patch, columns * self.patch
        return {arrays.PIXELS: arrays.resized(picture, size, self.pixels)[None]}

    def wrong(self) -> str | None:
        return (
            None if 1 <= self.longest_edge <= MAX_EDGE else f"longest_edge must be 1 to {MAX_EDGE}"
        )
