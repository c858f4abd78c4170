"""Sizes that pictures are resized to: pure arithmetic, so that tokens can be counted from a
picture's head alone.

The rules are those of each family's image processor in transformers, down to how they round.
All sizes are (height, width), pixels.
"""

from __future__ import annotations

import math

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
    """In proportion, so that the shorter side has `edge` pixels; the longer is rounded down. Raises
    BadShape for a picture that is too long."""
    check_ratio(size)
    height, width = size
    long = int(edge * max(size) / min(size))
    return (long, edge) if width <= height else (edge, long)


def whole_patches(size: Size, factor: int, least: int, most: int) -> Size:
    """Sides that are multiples of `factor`, with `least` to `most` pixels in all, near the
    picture's proportions. Raises BadShape for a picture that is too long."""
    check_ratio(size)
    height, width = size
    rounded = round(height / factor) * factor, round(width / factor) * factor
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
    """In proportion, so that the longer side has `edge` pixels, and the shorter an even number;
    no side longer than MAX_TILED."""
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
