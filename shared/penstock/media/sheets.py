"""Sheets of square tiles on which a picture lies in its proportions, followed by the whole sheet as
one tile: Phi-4-multimodal's, with the picture at the top left, and Phi-3-vision's, whose longer
side the picture fills.

The rules are those of transformers' image processor and of the makers' of Phi-3-vision, down to how
they round. Sizes are (height, width), pixels.
"""

from __future__ import annotations

import math
from functools import lru_cache

from penstock.media.geometry import BadShape, Size
from penstock.model.image_facts import BarredImages, SheetImages

SMALLEST = 10
"""Pixels that a side of the picture has on its sheet at least."""
WHITE = 255


def grid(image: SheetImages, size: Size) -> tuple[int, int]:
    """(rows, columns) of tiles. Raises BadShape."""
    barred = isinstance(image, BarredImages)
    height, width = inner(image, size) if barred else size
    rows, columns = math.ceil(height / image.tile), math.ceil(width / image.tile)
    if barred or rows * columns <= image.most:
        return rows, columns
    return _nearest(width / height, width * height, image.tile, image.most)


def _nearest(ratio: float, area: int, tile: int, most: int) -> tuple[int, int]:
    """The form whose width by height is nearest to `ratio`; of several, a larger one if the picture
    fills more than half of it."""
    best, nearest = (1, 1), math.inf
    for rows, columns in _forms(most):
        away = abs(ratio - columns / rows)
        if away < nearest or (away == nearest and area > 0.5 * tile * tile * rows * columns):
            best, nearest = (rows, columns), away
    return best


@lru_cache
def _forms(most: int) -> tuple[tuple[int, int], ...]:
    """(rows, columns), by how many tiles they have."""
    found = [(n // columns, columns) for n in range(1, most + 1) for columns in range(1, n + 1)]
    forms = {(rows, columns) for rows, columns in found if rows * columns <= most}
    return tuple(sorted(forms, key=lambda form: (math.prod(form), form)))


def inner(image: SheetImages, size: Size) -> Size:
    """The picture's size on its sheet. Raises BadShape."""
    if isinstance(image, BarredImages):
        return _filling(image, size)
    (height, width), (rows, columns) = size, grid(image, size)
    high, wide = rows * image.tile, columns * image.tile
    by_width, by_height = wide / width, high / height
    if by_width < by_height:
        found = int(height * by_width), wide
    else:
        found = high, int(width * by_height)
    if min(found) < SMALLEST:
        raise BadShape(
            f"it is {width} × {height}; where its longer side fills {max(rows, columns)} tiles, "
            f"its shorter one has less than {SMALLEST} pixels"
        )
    return found


def _filling(image: BarredImages, size: Size) -> Size:
    """The size at which the longer side fills as many tiles as there may be."""
    height, width = size
    ratio = max(size) / min(size)
    along = 1
    while (along + 1) * math.ceil((along + 1) / ratio) <= image.most:
        along += 1
    longer = along * image.tile
    shorter = int(longer / ratio)
    if not shorter:
        raise BadShape(
            f"it is {width} × {height}; where its longer side fills {along} tiles, its shorter one "
            "has no pixel"
        )
    return (shorter, longer) if width >= height else (longer, shorter)


def bars(image: SheetImages, size: Size, form: tuple[int, int]) -> list[tuple[int, int]]:
    """Rows of white above and below a picture of that size on its sheet, and columns to the left
    and right of it. form: rows and columns of tiles. Raises ValueError for a picture that doesn't
    lie on such a sheet."""
    missing = [count * image.tile - has for count, has in zip(form, size, strict=True)]
    if min(form) < 1 or math.prod(form) > image.most or min(missing) < 0:
        raise ValueError(
            f"a prepared picture's sheet has 1 to {image.most} tiles, and is as large as it"
        )
    barred = isinstance(image, BarredImages)
    return [(each // 2, each - each // 2) if barred else (0, each) for each in missing]


def shown(size: Size, form: tuple[int, int], tile: int, patch: int) -> tuple[int, int]:
    """Rows and columns of patches that aren't all white. size: the picture's on its sheet.  form:
    rows and columns of tiles."""
    rows, columns = (
        count * (tile // patch) - (count * tile - has) // patch
        for count, has in zip(form, size, strict=True)
    )
    return rows, columns


def embeddings(image: SheetImages, size: Size) -> int:
    """Embeddings of a picture. Raises BadShape."""
    form = grid(image, size)
    seen = shown(inner(image, size), form, image.tile, image.patch)
    if isinstance(image, BarredImages):
        side = image.tile // image.patch
        seen = form[0] * side, form[1] * side
    return rows_of(seen, image.tile // image.patch, image.merge)


def rows_of(seen: tuple[int, int], side: int, merge: int) -> int:
    """Embeddings of a sheet on which so many rows and columns of patches are seen: those of lines,
    each of which a vector ends, one between the sheet and the whole, and the whole's. side: patches
    in a row of a tile."""
    rows, columns = (-(-count // merge) for count in seen)
    whole = side // merge
    return rows * (columns + 1) + 1 + whole * (whole + 1)
