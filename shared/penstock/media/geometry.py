"""Sizes that pictures are resized to, and how they are cut into tiles: pure arithmetic, so that
tokens can be counted from a picture's head alone.

The rules are those of each family's image processor in transformers, down to how they round.
All sizes are (height, width), pixels.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

Size = tuple[int, int]

MAX_RATIO = 200
"""How many times as long as its shorter side a picture's longer one may be: Qwen2-VL's rule.  Where
the shorter side is what is resized to, this bounds the memory that a picture of few pixels can
take, too."""
MAX_TILED = 4096
"""Pixels of a side that a tiled picture is resized to at most."""


class BadShape(ValueError):
    """A picture is too long or too small; says what is allowed."""


def check_ratio(size: Size) -> None:
    """Raises BadShape for a picture that is too long."""
    height, width = size
    if max(size) / min(size) > MAX_RATIO:
        raise BadShape(
            f"it is {width} × {height}; its longer side may have {MAX_RATIO} times the pixels of "
            "its shorter one"
        )


def by_shortest_edge(size: Size, edge: int) -> Size:
    """Returns the size in proportion whose shorter side has `edge` pixels; the longer is rounded
    down. Raises BadShape for a picture that is too long."""
    check_ratio(size)
    height, width = size
    long = int(edge * max(size) / min(size))
    return (long, edge) if width <= height else (edge, long)


def whole_patches(size: Size, factor: int, least: int, most: int, smallest: int = 0) -> Size:
    """Sides that are multiples of `factor`, with `least` to `most` pixels in all, near the
    picture's proportions. smallest: to which a side is rounded at least, before pixels are counted.
    Raises BadShape for a picture that is too long."""
    check_ratio(size)
    height, width = size
    rounded = _rounded(height, factor, smallest), _rounded(width, factor, smallest)
    if rounded[0] * rounded[1] > most:
        shrink = math.sqrt(height * width / most)
        return (
            max(factor, math.floor(height / shrink / factor) * factor),
            max(factor, math.floor(width / shrink / factor) * factor),
        )
    if rounded[0] * rounded[1] < least:
        grow = math.sqrt(least / (height * width))
        return (
            math.ceil(height * grow / factor) * factor,
            math.ceil(width * grow / factor) * factor,
        )
    return rounded


def never_larger(size: Size, patch: int, most: int, most_side: int) -> Size:
    """The picture's size when it is made smaller, in proportion, until it has about `most` patches
    in all and `most_side` in a row or column: Kimi K2.5's rule."""
    height, width = size
    patches = max(1, height // patch) * max(1, width // patch)
    longest = most_side * patch
    scale = min(1.0, math.sqrt(most / patches), longest / height, longest / width)
    high, wide = (min(max(1, int(side * scale)), longest) for side in size)
    return high, wide


def whole_squares(size: Size, side: int, most: int) -> Size:
    """The largest sides that are multiples of `side`, about in the picture's proportions, with at
    most `most` squares of that side: Gemma 4's rule. A picture that is too long for its shorter
    side to have one has a row of them."""
    height, width = size
    factor = math.sqrt(most * side**2 / (height * width))
    high, wide = (math.floor(factor * each / side) * side for each in size)
    if not high:
        return side, min(width // height, most) * side
    if not wide:
        return min(height // width, most) * side, side
    return high, wide


def widened(size: Size, least: int) -> Size:
    """The picture's size when it is enlarged, about in proportion, until no side is shorter than
    `least`."""
    height, width = size
    if height < least:
        height, width = least, round(width * least / height)
    if width < least:
        height, width = round(height * least / width), least
    return height, width


def _rounded(length: int, factor: int, smallest: int) -> int:
    return max(round(length / factor) * factor, smallest)


def whole_volume(size: Size, frames: int, factor: int, group: int, least: int, most: int) -> Size:
    """Sides as of whole_patches, with `least` to `most` pixels in all frames together, which are
    counted in groups: Qwen3-VL's rule. Raises BadShape, for too few frames too."""
    if frames < group:
        raise BadShape(f"it shows {frames} frame; at least {group} are needed")
    height, width = size
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    check_ratio((height, width))
    rounded = round(height / factor) * factor, round(width / factor) * factor
    counted = round(frames / group) * group * rounded[0] * rounded[1]
    if counted > most:
        shrink = math.sqrt(frames * height * width / most)
        return (
            max(factor, math.floor(height / shrink / factor) * factor),
            max(factor, math.floor(width / shrink / factor) * factor),
        )
    if counted < least:
        grow = math.sqrt(least / (frames * height * width))
        return (
            math.ceil(height * grow / factor) * factor,
            math.ceil(width * grow / factor) * factor,
        )
    return rounded


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


def canvas(size: Size, tile: int, least: int, most: int) -> Size:
    """(rows, columns) of tiles whose form is the nearest to the picture's. Of equal ones the
    larger, as long as the picture has more than half of their pixels."""
    height, width = size
    best, nearest = (1, 1), math.inf
    forms = sorted(
        (
            (columns, rows)
            for columns in range(1, most + 1)
            for rows in range(1, most + 1)
            if least <= columns * rows <= most
        ),
        key=lambda form: form[0] * form[1],
    )
    for columns, rows in forms:
        away = abs(width / height - columns / rows)
        larger = away == nearest and width * height > 0.5 * tile * tile * columns * rows
        if away < nearest or larger:
            best, nearest = (rows, columns), away
    return best


def fitting_canvas(size: Size, tile: int, most: int) -> Size:
    """(rows, columns) of the tiles that enlarge the picture least, in proportion, if some are as
    large as it; else of those that shrink it least. Of several the fewest, and then the
    narrowest."""
    height, width = size
    forms = sorted(
        (
            (columns, rows)
            for columns in range(1, most + 1)
            for rows in range(1, most + 1)
            if columns * rows <= most
        ),
        key=lambda form: form[0] * form[1],
    )
    scales = [min(columns * tile / width, rows * tile / height) for columns, rows in forms]
    enlarging = [scale for scale in scales if scale >= 1]
    columns, rows = forms[scales.index(min(enlarging) if enlarging else max(scales))]
    return rows, columns


def is_large(size: Size, factor: int, smallest: int, most: float) -> bool:
    """Whether a picture whose sides are rounded to multiples of `factor`, or to `smallest`, has
    more than `most` pixels: LFM2-VL's rule."""
    height, width = size
    return _rounded(height, factor, smallest) * _rounded(width, factor, smallest) > most


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


def rows_of_patches(size: Size, longest: int, patch: int) -> Size:
    """(rows, columns) of patches of a picture that is made smaller, in proportion, until no side is
    longer than `longest`; a patch that isn't full counts."""
    height, width = size
    ratio = max(height / longest, width / longest)
    if ratio > 1:
        height, width = math.floor(height / ratio), math.floor(width / ratio)
    # A picture too long for even one pixel the other way still has a patch of it.
    return max((height - 1) // patch + 1, 1), max((width - 1) // patch + 1, 1)


def _even(length: int) -> int:
    return length + length % 2


# Pictures that are shown as one tile, and as several: which form these have together, and how many
# rows of embeddings they become. Pure arithmetic, for the front and for the worker.
#
# Source: Liu et al., "LLaVA-NeXT", 2024; Li et al., "LLaVA-OneVision", 2024. The rules are those of
# transformers, down to how they round. Sizes are (height, width).

_DIGITS = 7
"""Decimal places to which a length is rounded before it is rounded down."""
_SHRINKS = 1.1
"""The picture is made smaller if its sides are more than so many times too long."""


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


def best_form(size: Size, forms: Sequence[Size]) -> Size:
    """The form, in pixels, that shows most of a picture's; of several, the smallest, and of these
    the first."""

    def shows(form: Size) -> tuple[int, int]:
        scale = min(form[1] / size[1], form[0] / size[0])
        shown = min(int(size[1] * scale) * int(size[0] * scale), size[0] * size[1])
        return shown, shown - form[0] * form[1]

    return max(forms, key=shows)


def within_form(size: Size, form: Size) -> Size:
    """The picture's size in pixels when it is resized, in proportion, to fill a form one way."""
    by_width, by_height = form[1] / size[1], form[0] / size[0]
    if by_width < by_height:
        return min(math.ceil(size[0] * by_width), form[0]), form[1]
    return form[0], min(math.ceil(size[1] * by_height), form[1])


def anyres_shape(size: Size, forms: Sequence[Size], tile: int, side: int, most: int) -> AnyresShape:
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
    return AnyresShape(form, (top, left), high, wide)


# The canvas of square tiles that Llama 4 puts a picture on, and the size that it has there. Pure
# arithmetic.
#
# The rules are those of transformers' image processor, which computes some scales in float32: where
# two canvases nearly fit alike, that decides. Sizes are (height, width), pixels.


def best_canvas(size: Size, tile: int, most: int) -> Size:
    """The best of all canvases of 1 to `most` tiles: the one that enlarges the picture least, if
    one is as large as it; else the one that shrinks it least. Of several, the smallest."""
    canvases = _canvases(most)
    scales = [
        min(_single(count * tile / side) for count, side in zip(canvas, size, strict=True))
        for canvas in canvases
    ]
    enlarging = [scale for scale in scales if scale >= 1]
    chosen = min(enlarging) if enlarging else max(scales)
    rows, columns = min(
        (canvas for canvas, scale in zip(canvases, scales, strict=True) if scale == chosen),
        key=math.prod,
    )
    return rows * tile, columns * tile


def fitted(size: Size, canvas: Size, tile: int) -> Size:
    """The picture's size on its canvas, in proportion. It is enlarged up to a tile's side only."""
    within = [max(has, tile) for has in size]
    # What the canvas bounds is a tensor there, and its scale of a single precision.
    single = [side < has for side, has in zip(canvas, within, strict=True)]
    target = [min(pair) for pair in zip(canvas, within, strict=True)]
    high, wide = (
        _single(target[at] / size[at]) if single[at] else target[at] / size[at] for at in (0, 1)
    )
    if _single(wide) < _single(high) if any(single) else wide < high:
        return max(_scaled(size[0], wide, target[0], single=single[1]), 1), target[1]
    return target[0], max(_scaled(size[1], high, target[1], single=single[0]), 1)


def _scaled(length: int, scale: float, most: int, *, single: bool) -> int:
    exact = _single(length * _single(scale)) if single else length * scale
    return min(math.floor(exact), most)


def _single(value: float) -> float:
    """Rounded to float32. A product or quotient of two such numbers, computed in double precision
    and rounded, is the one that float32's own arithmetic gives."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


@lru_cache
def _canvases(most: int) -> tuple[Size, ...]:
    """Rows and columns of tiles, in the order in which transformers compares them."""
    by_ratio: dict[float, list[Size]] = {}
    for count in range(most, 0, -1):
        for rows in range(1, count + 1):
            if count % rows == 0:
                by_ratio.setdefault(rows / (count // rows), []).append((rows, count // rows))
    return tuple(canvas for alike in by_ratio.values() for canvas in alike)
