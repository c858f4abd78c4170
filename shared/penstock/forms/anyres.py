"""Pictures that are shown as one tile, and as several, of which bars are cut off: LLaVA-NeXT's,
LLaVA-OneVision's and Granite Vision's.

Source: Liu et al., "LLaVA-NeXT", 2024; Li et al., "LLaVA-OneVision", 2024. The rules are those of
transformers, down to how they round. Sizes are (height, width).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.forms.form import ImageForm, Runs
from penstock.forms.geometry import Size

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from penstock.forms.arrays import Arrays


_DIGITS = 7
"""Decimal places to which a length is rounded before it is rounded down."""
_SHRINKS = 1.1
"""The picture is made smaller if its sides are more than so many times too long."""


class AnyresImages(ImageForm, frozen=True, kw_only=True, tag_field="kind", tag="anyres"):
    """LLaVA-OneVision's: the whole picture as one tile, then square tiles of it between bars.

    tile: side, pixels.  side: of a tile, embeddings.  forms: height and width, in pixels, that the
    tiles may have together.  most: tiles of which a picture has as many embeddings as it may.
    """

    tile: int
    side: int
    forms: tuple[tuple[int, int], ...]
    most: int

    def runs(self, size: Size) -> Runs:
        shape = anyres_shape(size, self.forms, self.tile, self.side, self.most)
        return Runs.of(self.side**2 + shape.rows * (shape.columns + 1))

    def prepare(self, picture: Image.Image) -> Arrays:
        """The whole, then the tiles by rows."""
        from penstock.forms import arrays

        side, size = self.tile, arrays.size_of(picture)
        form = _best_form(size, self.forms)
        inner = arrays.resized(picture, _within_form(size, form), self.pixels)
        whole = arrays.resized(picture, (side, side), self.pixels)
        made = arrays.stacked([whole, *arrays.cut(arrays.centred(inner, form), side)])
        return made | {arrays.SIZE: arrays.two(size)}

    def inputs(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """What ImageForm gives, with image_size int32 [2], height and width of the picture."""
        from penstock.forms.arrays import SIZE, pair

        size = pair(arrays.get(SIZE), "a prepared picture in tiles has a size of two int32")
        return super().inputs(arrays) | {"image_size": size}


class AnyresShape(NamedTuple):
    """Shape of the tiles after the first one."""

    form: Size
    """Rows and columns of tiles."""
    bars: Size
    """Lines of patches that are cut off above, and as many below; columns at the left, and as many
    at the right."""
    rows: int
    """Lines of embeddings."""
    columns: int
    """Embeddings of a line, but for the vector that ends it."""


def _best_form(size: Size, forms: Sequence[Size]) -> Size:
    """The form, in pixels, that shows most of a picture's; of several, the smallest, and of these
    the first."""

    def shows(form: Size) -> tuple[int, int]:
        scale = min(form[1] / size[1], form[0] / size[0])
        shown = min(int(size[1] * scale) * int(size[0] * scale), size[0] * size[1])
        return shown, shown - form[0] * form[1]

    return max(forms, key=shows)


def _within_form(size: Size, form: Size) -> Size:
    """The picture's size in pixels when it is resized, in proportion, to fill a form one way."""
    by_width, by_height = form[1] / size[1], form[0] / size[0]
    if by_width < by_height:
        return min(math.ceil(size[0] * by_width), form[0]), form[1]
    return form[0], min(math.ceil(size[1] * by_height), form[1])


def anyres_shape(size: Size, forms: Sequence[Size], tile: int, side: int, most: int) -> AnyresShape:
    """tile: pixels of a tile's side. side: its patches. most: see VisionSpec's AnyresProjector."""
    best = _best_form(size, forms)
    form = best[0] // tile, best[1] // tile
    high, wide = form[0] * side, form[1] * side
    top = left = 0
    if size[1] / size[0] > wide / high:
        top = (high - int(round(size[0] * (wide / size[1]), _DIGITS))) // 2
    else:
        left = (wide - int(round(size[1] * (high / size[0]), _DIGITS))) // 2
    high, wide = high - 2 * top, wide - 2 * left
    ratio = math.sqrt(high * wide / (most * side**2))
    if ratio > _SHRINKS:
        high, wide = int(high // ratio), int(wide // ratio)
    return AnyresShape(form, (top, left), high, wide)
