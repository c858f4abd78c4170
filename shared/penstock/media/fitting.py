"""The canvas of square tiles that Llama 4 puts a picture on, and the size that it has there. Pure
arithmetic.

The rules are those of transformers' image processor, which computes some scales in float32: where
two canvases nearly fit alike, that decides. Sizes are (height, width), pixels.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from penstock.media.geometry import Size


def best_canvas(size: Size, tile: int, most: int) -> Size:
    """Of all canvases of 1 to `most` tiles: the one that enlarges the picture least, if one is as
    large as it; else the one that shrinks it least. Of several, the smallest."""
    canvases = _canvases(most)
    sides = np.array(canvases, np.float32) * np.float32(tile)
    scales = (sides / np.array(size, np.float32)).min(1)
    enlarging = scales[scales >= 1]
    chosen = enlarging.min() if len(enlarging) else scales.max()
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
        np.float32(target[at]) / np.float32(size[at]) if single[at] else target[at] / size[at]
        for at in (0, 1)
    )
    either = any(single)
    if np.float32(wide) < np.float32(high) if either else wide < high:
        return max(_scaled(size[0], wide, target[0], single=single[1]), 1), target[1]
    return target[0], max(_scaled(size[1], high, target[1], single=single[0]), 1)


def _scaled(length: int, scale: float | np.float32, most: int, *, single: bool) -> int:
    exact = np.float32(length) * np.float32(scale) if single else length * scale
    return min(math.floor(exact), most)


@lru_cache
def _canvases(most: int) -> tuple[Size, ...]:
    """Rows and columns of tiles, in the order in which transformers compares them."""
    by_ratio: dict[float, list[Size]] = {}
    for count in range(most, 0, -1):
        for rows in range(1, count + 1):
            if count % rows == 0:
                by_ratio.setdefault(rows / (count // rows), []).append((rows, count // rows))
    return tuple(canvas for alike in by_ratio.values() for canvas in alike)
