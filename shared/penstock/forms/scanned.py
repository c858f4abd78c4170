"""Gemma 3's pictures, with crops of those that are long or high."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, ClassVar

from penstock.forms.form import MAX_EDGE, MAX_TILES, ImageForm, ItemRun, Runs
from penstock.forms.geometry import Size

if TYPE_CHECKING:
    from PIL import Image

    from penstock.forms.arrays import Arrays


class ScannedImages(ImageForm, frozen=True, kw_only=True, tag_field="kind", tag="gemma3"):
    """Gemma 3's: one size for all. With pan and scan, crops of a picture that is long or high
    follow it.

    height, width: of what the tower gets.  rows: embeddings of a picture, and of a crop.  scan:
    whether there are crops.  most: crops of a picture.  least: pixels of a crop's shorter side, at
    least.  ratio: of a picture's sides, from which on it is cropped.
    """

    height: int
    width: int
    rows: int
    begin: str
    end: str
    """Around the embeddings of a picture, and of a crop."""
    scan: bool = False
    most: int = 4
    least: int = 256
    ratio: float = 1.2

    CHANGES: ClassVar[Mapping[str, str]] = {
        "do_pan_and_scan": "scan",
        "pan_and_scan_max_num_crops": "most",
        "pan_and_scan_min_crop_size": "least",
        "pan_and_scan_min_ratio_to_activate": "ratio",
    }

    def grid(self, size: Size) -> tuple[int, int]:
        """(rows, columns) of crops; (0, 0): the picture alone."""
        return crops(size, self.most, self.least, self.ratio) if self.scan else (0, 0)

    def runs(self, size: Size) -> Runs:
        rows, columns = self.grid(size)
        if not rows:
            return Runs((ItemRun(self.begin, self.rows),), self.end)
        runs = [ItemRun(f"Here is the original image {self.begin}", self.rows)]
        between = " and here are some crops to help you see better "
        for _ in range(rows * columns):
            runs.append(ItemRun(f"{self.end}{between}{self.begin}", self.rows))
            between = " "
        return Runs(tuple(runs), self.end)

    def prepare(self, picture: Image.Image) -> Arrays:
        """The whole, then its crops."""
        from penstock.forms import arrays

        shown, (rows, columns) = [picture], self.grid(arrays.size_of(picture))
        if rows:
            width, height = -(-picture.width // columns), -(-picture.height // rows)
            corners = product(range(0, rows * height, height), range(0, columns * width, width))
            for top, left in corners:
                ends = min(left + width, picture.width), min(top + height, picture.height)
                shown.append(picture.crop((left, top, *ends)))
        tile = self.height, self.width
        return arrays.stacked([arrays.resized(each, tile, self.pixels) for each in shown])

    def wrong(self) -> str | None:
        # A crop has as many pixels as there are crops, so that the last one isn't empty.
        if not 2 <= self.most <= MAX_TILES or not MAX_TILES <= self.least <= MAX_EDGE:
            return (
                f"pan_and_scan_max_num_crops must be 2 to {MAX_TILES}, and "
                f"pan_and_scan_min_crop_size {MAX_TILES} to {MAX_EDGE}"
            )
        if not 1.0 <= self.ratio <= 1000.0:
            return "pan_and_scan_min_ratio_to_activate must be 1 to 1000"
        return None


def crops(size: Size, most: int, least: int, ratio: float) -> Size:
    """(rows, columns) of crops of a picture, in a row or a column; (0, 0): it isn't cropped. Gemma
    3's pan and scan: as many as the picture is longer than wide, at least two."""
    long, short = max(size), min(size)
    if long / short < ratio:
        return 0, 0
    count = min(math.floor(long / short + 0.5), math.floor(long / least))
    count = min(max(count, 2), most)
    if min(math.ceil(long / count), short) < least:
        return 0, 0
    return (1, count) if size[1] >= size[0] else (count, 1)
