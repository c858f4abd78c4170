"""MiniCPM-V's slices: how a picture is cut into some of about as many pixels as a square has, and
what stands around their embeddings. Pure arithmetic.

The rules are those of transformers' image processor, down to how they round. Sizes are (height,
width), pixels.
"""

from __future__ import annotations

import math

from penstock.media.geometry import Size, check_ratio
from penstock.model.image_facts import SlicedImages


def grid(image: SlicedImages, size: Size) -> tuple[int, int]:
    """(rows, columns) of slices; (0, 0): the whole alone. Raises BadShape."""
    check_ratio(size)
    if not image.split:
        return 0, 0
    height, width = size
    count = min(math.ceil(width * height / (image.scale * image.scale)), image.most)
    return _form(math.log(width / height), count, image.most) if count > 1 else (0, 0)


def _form(form: float, count: int, most: int) -> tuple[int, int]:
    """Rows and columns of about `count` slices, nearest to the logarithm of a picture's width by
    its height."""
    best, nearest = (1, 1), math.inf
    for parts in (count - 1, count, count + 1):
        if parts == 1 or parts > most:
            continue
        for columns in range(1, parts + 1):
            if parts % columns:
                continue
            rows = parts // columns
            away = abs(form - math.log(columns / rows))
            if away < nearest:
                best, nearest = (rows, columns), away
    return best


def whole_size(image: SlicedImages, size: Size) -> Size:
    """The whole's. A picture without slices is enlarged, too. Raises BadShape."""
    return _near_square(image, *size, enlarged=grid(image, size) == (0, 0))


def slice_size(image: SlicedImages, size: Size) -> Size:
    """The size of each slice of a picture that has some."""
    # The picture is rounded to whole pixels of a slice first.
    height, width = (
        max(round(side / count) * count, count) / count
        for side, count in zip(size, grid(image, size), strict=True)
    )
    return _near_square(image, height, width, enlarged=True)


def runs(image: SlicedImages, size: Size) -> tuple[list[tuple[str, int]], str]:
    """Text before each run of embeddings, and how many these are; and the text behind the last.
    Raises BadShape."""
    found, end = [(image.begin, _rows(image, whole_size(image, size)))], image.end
    rows, columns = grid(image, size)
    each = _rows(image, slice_size(image, size)) if rows else 0
    for number in range(rows * columns):
        newline = "\n" if number and number % columns == 0 else ""
        found.append((f"{end}{newline}{image.slice_begin}", each))
        end = image.slice_end
    return found, end


def _rows(image: SlicedImages, size: Size) -> int:
    if image.queries:
        return image.queries
    patches = size[0] // image.patch * (size[1] // image.patch)
    return patches // image.merge**2


def _near_square(image: SlicedImages, height: float, width: float, *, enlarged: bool) -> Size:
    """Sides that are multiples of the patches that make up one embedding, near the proportions,
    with about as many pixels as the square. enlarged: whether what has fewer is, too."""
    if enlarged or height * width > image.scale * image.scale:
        ratio = width / height
        height = int(image.scale / math.sqrt(ratio))
        width = int(height * ratio)
    return _rounded(height, image.square), _rounded(width, image.square)


def _rounded(length: float, factor: int) -> int:
    return max(round(length / factor) * factor, factor)
