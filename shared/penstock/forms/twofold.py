"""DeepSeek-VL 7B's pictures, which two towers see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.forms.form import ImageForm, Runs
from penstock.forms.geometry import Size
from penstock.forms.pixels import Pixels

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from penstock.forms.arrays import Arrays


class TwofoldImages(ImageForm, frozen=True, kw_only=True, tag_field="kind", tag="deepseek_vl"):
    """DeepSeek-VL 7B's: a picture lies, in its proportions, in the middle of a large square, which
    one tower sees, and the other one made smaller.

    pixels: of the smaller square.  large_pixels: of the large one.  side, large: of either, pixels.
    least: of the shorter side of a picture in the large square, pixels.  rows: embeddings.
    """

    large_pixels: Pixels
    side: int
    large: int
    least: int
    rows: int
    background: tuple[int, int, int]
    """Colour of the bars."""

    def runs(self, size: Size) -> Runs:
        return Runs.of(self.rows)

    def prepare(self, picture: Image.Image) -> Arrays:
        from penstock.forms import arrays

        inner = arrays.within_square(picture, self.large, self.least, self.large_pixels)
        large = arrays.square(inner, self.background)
        small = arrays.resized(large, (self.side, self.side), self.pixels)
        return {arrays.PIXELS: small[None], arrays.LARGE: arrays.bytes_in(large)[None]}

    def inputs(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """What ImageForm gives, with large_pixel_values."""
        from penstock.forms.arrays import LARGE, bytes_of, of_tiles, pixels_in

        pixels = pixels_in(arrays)
        large = bytes_of(arrays.get(LARGE), "a prepared picture has a large one", "tiles")
        if len(pixels) != 1 or len(large) != 1:
            raise ValueError("a prepared picture is one tile of each size here")
        return {
            "pixel_values": of_tiles(pixels, self.pixels),
            "large_pixel_values": of_tiles(large, self.large_pixels),
        }
