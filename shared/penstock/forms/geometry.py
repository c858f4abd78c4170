"""Sizes that pictures are resized to: arithmetic that several forms share, so that tokens can be
counted from a picture's head alone.

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


def whole_patches(size: Size, factor: int, least: int, most: int, smallest: int = 0) -> Size:
    """Sides that are multiples of `factor`, with `least` to `most` pixels in all, near the
    picture's proportions. smallest: to which a side is rounded at least, before pixels are counted.
    Raises BadShape for a picture that is too long."""
    check_ratio(size)
    height, width = size
    rounded = to_multiple(height, factor, smallest), to_multiple(width, factor, smallest)
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


def to_multiple(length: float, factor: int, smallest: int) -> int:
    """The multiple of `factor` nearest to a length, but no less than `smallest`."""
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
