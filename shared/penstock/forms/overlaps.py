"""Arrays of Molmo 2's crops: which patches each embedding is made of, and how pictures are resized.

The rules are those of the makers' image processor. Sizes are (height, width), pixels.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from penstock.forms.crops import CropForm
from penstock.forms.geometry import Size

NO_PATCH = -1
"""Stands where an embedding is made of fewer patches than others."""
NO_MARK = -1
"""Stands for an embedding among numbers of tokens."""


def form(image: CropForm, size: Size) -> tuple[int, int]:
    """(rows, columns) of crops: the form that is enlarged least to, or, if the picture is larger
    than all of them, made smaller least. Margins don't count."""
    forms = np.array(_forms(image.most), np.int32)
    inner = np.array(size, np.float32) - np.float32(image.side - _step(image))
    with np.errstate(divide="ignore"):
        scales = (forms * _step(image)).astype(np.float32) / inner
    worst = scales.min(1)
    if (worst < 1).all():
        best = int(worst.argmax())
    else:
        best = int(np.where(worst < 1, np.inf, worst).argmin())
    rows, columns = forms[best].tolist()
    return rows, columns


@lru_cache
def _forms(most: int) -> tuple[tuple[int, int], ...]:
    """(rows, columns), fewer crops first."""
    found = [
        (rows, columns) for rows in range(1, most + 1) for columns in range(1, most // rows + 1)
    ]
    return tuple(sorted(found, key=lambda each: (each[0] * each[1], each[0])))


def _step(image: CropForm) -> int:
    """Pixels from one crop to the next."""
    return image.side - image.patch * sum(image.margins)


def cut_size(image: CropForm, crops: tuple[int, int]) -> Size:
    """Returns the size to which a picture is resized before crops are cut out of it."""
    margin = image.side - _step(image)
    return crops[0] * _step(image) + margin, crops[1] * _step(image) + margin


def cut(image: CropForm, pixels: np.ndarray, crops: tuple[int, int]) -> list[np.ndarray]:
    """The crops of [height, width, 3], by rows."""
    side, step = image.side, _step(image)
    corners = [(row * step, column * step) for row in range(crops[0]) for column in range(crops[1])]
    return [pixels[top : top + side, left : left + side] for top, left in corners]


def resized(pixels: np.ndarray, size: Size) -> np.ndarray:
    """uint8 [height, width, 3]: each pixel is the mean of the four next to its middle, by how near
    they are, however much smaller the picture becomes (torch's bilinear interpolation without
    antialiasing)."""
    if pixels.shape[:2] == size:
        return pixels
    (top, bottom, low), (left, right, near) = (
        _between(has, wanted) for has, wanted in zip(pixels.shape[:2], size, strict=True)
    )
    low = low[:, None]
    far, high = np.float32(1) - near, np.float32(1) - low
    corners = (
        (top, right, high * near),
        (top, left, high * far),
        (bottom, left, low * far),
        (bottom, right, low * near),
    )
    # Added up in torch's order, and rounded where it rounds: a mean may lie half way between bytes.
    total = np.zeros((*size, 3), np.float32)
    for lines, columns, share in corners:
        total = (pixels[lines][:, columns] * share.astype(np.float64) + total).astype(np.float32)
    return np.rint(total).astype(np.uint8)


def _between(has: int, wanted: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each of `wanted` pixels the two of `has` next to it, and the second one's share, which is
    a float32 as in torch."""
    scale = float(np.float32(has) / np.float32(wanted))
    at = ((np.arange(wanted) + 0.5) * scale - 0.5).clip(0).astype(np.float32)
    first = np.minimum(at.astype(np.int64), has - 1)
    share = (at - first.astype(np.float32)).clip(0, 1).astype(np.float32)
    return first, np.minimum(first + 1, has - 1), share[:, None]


def embeddings(image: CropForm, crops: tuple[int, int]) -> int:
    """Embeddings of a picture with so many rows and columns of crops, with the tokens among
    them."""
    rows, columns = _pooled_form(image, _whole_form(image))
    high, wide = _pooled_form(image, _cut_form(image, crops))
    return 4 + rows * (columns + image.whole_lines) + high * (wide + image.lines)


def marked(image: CropForm, crops: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """Which embeddings are tokens': their places among all, and the tokens."""
    return _tokens(image, pooled(image, crops)[1])


def _tokens(image: CropForm, marks: np.ndarray) -> tuple[tuple[int, int], ...]:
    return tuple((int(at), image.first_token + int(marks[at])) for at in np.flatnonzero(marks >= 0))


def frame_embeddings(image: CropForm) -> int:
    """Embeddings of a video's frame, with the tokens among them."""
    rows, columns = _pooled_form(image, _whole_form(image))
    return 2 + rows * (columns + image.lines)


def marked_frames(image: CropForm, count: int) -> tuple[tuple[int, int], ...]:
    """What `marked` gives, of a video of so many frames."""
    return _tokens(image, pooled_frames(image, count)[1])


def pooled_frames(image: CropForm, count: int) -> tuple[np.ndarray, np.ndarray]:
    """What `pooled` gives, of a video of so many frames, whose patches are counted through all of
    them."""
    rows, columns = _whole_form(image)
    each = np.arange(rows * columns).reshape(rows, columns)
    one, marks = _marked(image, each, image.begin, ended=image.lines)
    firsts = np.arange(count)[:, None, None] * each.size
    patches = np.where(one == NO_PATCH, NO_PATCH, one + firsts).reshape(-1, one.shape[1])
    return patches.astype(np.int32), np.tile(marks, count).astype(np.int32)


def _whole_form(image: CropForm) -> tuple[int, int]:
    """Rows and columns of patches of a square."""
    return image.side // image.patch, image.side // image.patch


def _cut_form(image: CropForm, crops: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of patches of the picture that crops are cut out of."""
    height, width = cut_size(image, crops)
    return height // image.patch, width // image.patch


def _pooled_form(image: CropForm, patches: tuple[int, int]) -> tuple[int, int]:
    rows, columns = (-(-count // by) for count, by in zip(patches, image.pool, strict=True))
    return rows, columns


def pooled(image: CropForm, crops: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Which patches each embedding is made of, [rows, patches] int32, or NO_PATCH, counted through
    the whole and then the crops; and which tokens stand among them, [rows] int32, or NO_MARK, by
    their numbers among those that stand for pictures alone."""
    side = image.side // image.patch
    whole = np.arange(side * side).reshape(side, side)
    parts = [
        _marked(image, whole, image.whole_begin, ended=image.whole_lines),
        _marked(image, _of_crops(image, crops), image.begin, ended=image.lines),
    ]
    patches, marks = (np.concatenate(each).astype(np.int32) for each in zip(*parts, strict=True))
    return patches, marks


def _of_crops(image: CropForm, crops: tuple[int, int]) -> np.ndarray:
    """[rows, columns] of the patches of the picture that crops are cut out of: the number of each
    in that crop which shows most around it."""
    side, step = image.side // image.patch, _step(image) // image.patch
    lines = []
    for count, length in zip(crops, _cut_form(image, crops), strict=True):
        at = np.arange(length)
        crop = np.clip((at - image.margins[0]) // step, 0, count - 1)
        lines.append((crop, at - crop * step))
    (row, down), (column, along) = lines
    number = 1 + row[:, None] * crops[1] + column[None]
    return number * side * side + down[:, None] * side + along[None]


def _marked(
    image: CropForm, patches: np.ndarray, begin: int, *, ended: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings of [rows, columns] patches, between the two tokens around them. ended: whether one
    ends each line."""
    high, wide = image.pool
    missing = [-has % by for has, by in zip(patches.shape, image.pool, strict=True)]
    around = [(each // 2, each - each // 2) for each in missing]
    filled = np.pad(patches, around, constant_values=NO_PATCH)
    rows, columns = filled.shape[0] // high, filled.shape[1] // wide
    apart = filled.reshape(rows, high, columns, wide).transpose(0, 2, 1, 3)
    squares = apart.reshape(rows, columns, high * wide)
    marks, first = np.full((rows, columns), NO_MARK), image.first_token
    if ended:
        squares = np.pad(squares, ((0, 0), (0, 1), (0, 0)), constant_values=NO_PATCH)
        marks = np.pad(marks, ((0, 0), (0, 1)), constant_values=image.line_end - first)
    flat = squares.reshape(-1, high * wide)
    return (
        np.pad(flat, ((1, 1), (0, 0)), constant_values=NO_PATCH),
        np.concatenate(([begin - first], marks.reshape(-1), [image.end - first])),
    )
