"""What the forms of a picture's preparation have in common: how a picture stands in a prompt, which
arrays are made of it, and which settings a request may change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec

from penstock.forms.geometry import Size
from penstock.forms.pixels import Pixels

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from penstock.forms.arrays import Arrays

MAX_TILES = 64
"""Most tiles of a canvas, and most crops of a picture."""
MAX_EDGE = 8192
"""Pixels of the longest edge that a picture may be resized to."""


class ItemRun(NamedTuple):
    """Text, then so many embeddings."""

    text: str
    rows: int


class Runs(NamedTuple):
    """How an item stands in a prompt, without what all of its kind have around them: runs one after
    the other, then `behind`. grid, marked: see ItemLayout."""

    runs: tuple[ItemRun, ...]
    behind: str = ""
    grid: tuple[int, ...] = ()
    marked: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def of(rows: int, grid: tuple[int, ...] = ()) -> Runs:
        """One run without text."""
        return Runs((ItemRun("", rows),), grid=grid)


class ImageForm(msgspec.Struct, frozen=True, kw_only=True):
    """A form of preparation of pictures. Structs can't be abstract: what raises NotImplementedError
    here is each form's own to say."""

    pixels: Pixels

    CHANGES: ClassVar[Mapping[str, str]] = {}
    """Settings that a request or an operator may change (mm_processor_kwargs), by the names of the
    family's image processor, and the fields that they are."""
    COUNTS_WITH_ARRAYS: ClassVar[bool] = False
    """Whether counting rows loads numpy."""

    def laid_out(self, shape: tuple[int, ...]) -> Runs:
        """How a picture stands in a prompt. shape: (height, width), pixels. Raises BadShape."""
        height, width = shape
        return self.runs((height, width))

    def runs(self, size: Size) -> Runs:
        """What `laid_out` gives."""
        raise NotImplementedError

    def prepare(self, picture: Image.Image) -> Arrays:
        """The arrays of a prepared picture, which is RGB and upright. Raises BadShape."""
        raise NotImplementedError

    def inputs(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """What the family's image processor gives in transformers, of a prepared picture's arrays:
        pixel_values float32 [tiles, 3, height, width], or what the form says. Raises ValueError for
        what no preparation yields."""
        from penstock.forms.arrays import of_tiles, pixels_in

        return {"pixel_values": of_tiles(pixels_in(arrays), self.pixels)}

    def wrong(self) -> str | None:
        """What is wrong with settings that were changed; None: nothing."""
        return None

    def _most_is_wrong(self, most: int, least: int = 1) -> str | None:
        (name,) = (name for name, field in self.CHANGES.items() if field == "most")
        if least <= most <= MAX_TILES:
            return None
        return f"{name} must be {least} to {MAX_TILES}"


class PartedForm(ImageForm, frozen=True, kw_only=True):
    """A form of pictures in parts of several sizes, of which patches are kept. patch: side,
    pixels."""

    patch: int

    def inputs(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """pixel_values float32 [patches, 3 * patch * patch], where colours come first, with
        spatial_shapes int32 [parts, 2]."""
        from penstock.forms.arrays import SHAPES, of_parts, pixels_in

        return of_parts(pixels_in(arrays), arrays.get(SHAPES), self.pixels, self.patch)
