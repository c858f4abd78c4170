"""Sizes that pictures are resized to: pure arithmetic, so that tokens can be counted from a
picture's head alone.

The rules are those of each family's image processor in transformers, down to how they round.
All sizes are (height, width), pixels.
"""

from __future__ import annotations

import math

Size = tuple[int, int]

MAX_RATIO = 200
"""Of a picture's longer side to its shorter one: Qwen2-VL's rule.  Where the shorter side is what
is resized to, the same bounds the memory that a picture of few pixels can take."""
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


def _even(length: int) -> int:
    return length + length % 2
