"""Pictures that are shown as one tile, and as several: which form these have together, and how many
rows of embeddings they become. Pure arithmetic, for the front and for the worker.

Source: Liu et al., "LLaVA-NeXT", 2024; Li et al., "LLaVA-OneVision", 2024. The rules are those of
transformers, down to how they round. Sizes are (height, width).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from penstock.media.geometry import Size

_DIGITS = 7
"""Decimal places to which a length is rounded before it is rounded down."""
_SHRINKS = 1.1
"""The picture is made smaller if its sides are more than so many times too long."""


class Shape(NamedTuple):
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


def best_form(size: Size, forms: Sequence[Size]) -> Size:
    """The form, in pixels, that shows most of a picture's; of several, the smallest, and of these
    the first."""

    def shows(form: Size) -> tuple[int, int]:
        scale = min(form[1] / size[1], form[0] / size[0])
        shown = min(int(size[1] * scale) * int(size[0] * scale), size[0] * size[1])
        return shown, shown - form[0] * form[1]

    return max(forms, key=shows)


def within(size: Size, form: Size) -> Size:
    """The picture's size in pixels when it is resized, in proportion, to fill a form one way."""
    by_width, by_height = form[1] / size[1], form[0] / size[0]
    if by_width < by_height:
        return min(math.ceil(size[0] * by_width), form[0]), form[1]
    return form[0], min(math.ceil(size[1] * by_height), form[1])


def shape_of(size: Size, forms: Sequence[Size], tile: int, side: int, most: int) -> Shape:
    """tile: pixels of a tile's side. side: its patches. most: see VisionSpec's AnyresProjector."""
    best = best_form(size, forms)
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
    return Shape(form, (top, left), high, wide)
