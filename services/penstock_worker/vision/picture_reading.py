"""How the tensors of a prepared item become a picture.

Preparations give either pixels, [tiles, channels, rows, columns], or patches that are cut already
and stand in order of the squares that become a row (Qwen2-VL).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from penstock.forms.aspects import aspect_forms
from penstock.model.tower_spec import AspectSpec, AxialPositions, LearnedPositions, VisionSpec
from penstock_worker.vision.picture import Picture, UnfitPicture

PIXELS = "pixel_values"
GRID = "grid_thw"
SHAPES = "spatial_shapes"
TILES = "tile_grid"
MAX_SIDE = 1 << 20


@dataclass(frozen=True)
class Squares:
    """Patches in a row of squares of which a tile must have whole ones. alike: whether it must have
    as many rows as columns."""

    side: int = 1
    alike: bool = False


def read_picture(
    tensors: Mapping[str, np.ndarray],
    spec: VisionSpec,
    squares: Squares,
    *,
    parted: bool = False,
    ordered: bool = False,
) -> Picture:
    """Returns the picture that an item's tensors hold. parted, ordered: as Projector has them.
    Raises UnfitPicture for other tensors than the tower takes."""
    if spec.tower.aspects is not None:
        return _on_canvas(tensors, spec, spec.tower.aspects)
    positions = spec.tower.positions
    if isinstance(positions, LearnedPositions) and (positions.stretched or positions.of_parts):
        parted = True
    if parted:
        return read_parts(tensors, spec, squares, ordered=ordered)
    return of_pixels(tensors, spec, squares)


def _on_canvas(tensors: Mapping[str, np.ndarray], spec: VisionSpec, aspects: AspectSpec) -> Picture:
    """The tiles of a canvas."""
    pixels, grid = only(tensors, PIXELS, TILES)
    plain = of_pixels({PIXELS: pixels}, spec)
    form = tuple(int(count) for count in grid)
    if grid.dtype != np.int32 or form not in aspect_forms(aspects.most):
        raise UnfitPicture(f"{TILES} is {grid.dtype} {form}; up to {aspects.most} tiles are needed")
    if plain.tiles != form[0] * form[1]:
        raise UnfitPicture(f"a picture on {form[0]} x {form[1]} tiles has {plain.tiles}")
    return replace(plain, form=form)


def only(tensors: Mapping[str, np.ndarray], *names: str) -> list[np.ndarray]:
    """Returns the tensors of these names. Raises UnfitPicture for others."""
    if set(tensors) != set(names):
        raise UnfitPicture(
            f"a prepared picture has {', '.join(names)} for this model, and not "
            f"{', '.join(sorted(tensors)) or 'nothing'}"
        )
    return [tensors[name] for name in names]


def _floats(pixels: np.ndarray, dimensions: int) -> np.ndarray:
    if pixels.dtype != np.float32 or pixels.ndim != dimensions or not pixels.size:
        raise UnfitPicture(
            f"{PIXELS} are {pixels.dtype} of shape {pixels.shape}; float32 with {dimensions} "
            "dimensions is needed"
        )
    return pixels


def read_patches(tensors: Mapping[str, np.ndarray], spec: VisionSpec, side: int) -> Picture:
    """Returns a picture whose patches stand in order of squares of side x side. Raises
    UnfitPicture."""
    pixels, grid = only(tensors, PIXELS, GRID)
    tower, pixels = spec.tower, _floats(pixels, 2)
    values = tower.channels * tower.frames * tower.patch**2
    if grid.shape != (3,) or grid.dtype != np.int32:
        raise UnfitPicture(f"{GRID} is {grid.dtype} of shape {grid.shape}; 3 int32 are needed")
    frames, rows, columns = (int(each) for each in grid)
    if min(frames, rows, columns) < 1 or rows % side or columns % side:
        raise UnfitPicture(
            f"{GRID} is {frames}, {rows}, {columns}; positive numbers are needed, the last two "
            f"multiples of {side}"
        )
    if pixels.shape != (frames * rows * columns, values):
        raise UnfitPicture(
            f"{PIXELS} have shape {pixels.shape}; {frames * rows * columns} patches of {values} "
            "values are needed"
        )
    return Picture(torch.from_numpy(pixels.copy()), frames, rows, columns)


def read_parts(
    tensors: Mapping[str, np.ndarray],
    spec: VisionSpec,
    squares: Squares = Squares(),
    *,
    ordered: bool = False,
) -> Picture:
    """Returns tiles of one size, then some of another; unless `ordered`, of a video's frames again
    and again. Raises UnfitPicture."""
    pixels, shapes = only(tensors, PIXELS, SHAPES)
    tower, pixels = spec.tower, _floats(pixels, 2)
    if shapes.dtype != np.int32 or shapes.ndim != 2 or shapes.shape[1] != 2 or not len(shapes):
        raise UnfitPicture(f"{SHAPES} are {shapes.dtype} of shape {shapes.shape}")
    if shapes.min() < 1 or shapes.max() > MAX_SIDE:
        raise UnfitPicture(f"{SHAPES} are {shapes.min()} to {shapes.max()}; up to {MAX_SIDE}")
    counts = [int(rows) * int(columns) for rows, columns in shapes]
    if pixels.shape != (sum(counts), tower.channels * tower.patch**2):
        raise UnfitPicture(
            f"{PIXELS} have shape {pixels.shape}; {sum(counts)} patches of "
            f"{tower.channels * tower.patch**2} values are needed"
        )
    forms = [(int(rows), int(columns)) for rows, columns in shapes]
    if len(set(forms)) > 2:
        raise UnfitPicture(f"{SHAPES} have parts of more than two sizes")
    for form in set(forms):
        _check_form(*form, spec, squares)
    alike = [(form, len(list(each))) for form, each in groupby(forms)]
    if len(alike) > 2 and ordered:
        raise UnfitPicture(f"{SHAPES} have parts that are not in order")
    found = torch.from_numpy(pixels.copy())
    parts = found.split([tiles * rows * columns for (rows, columns), tiles in alike])
    picture: Picture | None = None
    for part, (form, tiles) in zip(reversed(parts), reversed(alike), strict=True):
        picture = Picture(part, tiles, *form, behind=picture)
    if picture is None:
        raise UnfitPicture(f"{SHAPES} name no parts")
    return picture


def of_pixels(
    tensors: Mapping[str, np.ndarray], spec: VisionSpec, squares: Squares = Squares()
) -> Picture:
    """Tiles of one size, in pixels. Raises UnfitPicture."""
    (pixels,) = only(tensors, PIXELS)
    tower, pixels = spec.tower, _floats(pixels, 4)
    tiles, channels, height, width = pixels.shape
    fixed = spec.image_size
    if channels != tower.channels or (fixed is not None and (height, width) != (fixed, fixed)):
        size = "rows x columns" if fixed is None else f"{fixed} x {fixed}"
        raise UnfitPicture(
            f"{PIXELS} have shape {pixels.shape}; tiles x {tower.channels} x {size} are needed"
        )
    rows, columns = height // tower.patch, width // tower.patch
    _check_form(rows, columns, spec, squares)
    return Picture(
        _cut(torch.from_numpy(pixels.copy()), rows, columns, tower.patch), tiles, rows, columns
    )


def _check_form(rows: int, columns: int, spec: VisionSpec, squares: Squares) -> None:
    if min(rows, columns) < 1:
        raise UnfitPicture(f"a tile has less than a patch of {spec.tower.patch} pixels")
    positions = spec.tower.positions
    if isinstance(positions, AxialPositions) and max(rows, columns) > positions.side:
        raise UnfitPicture(
            f"a picture has {rows} x {columns} patches; {positions.side} each way are allowed"
        )
    windows = spec.tower.windows
    if windows is not None and windows.grid and rows != columns:
        raise UnfitPicture(f"a tile has {rows} x {columns} patches; squares are needed")
    whole = not rows % squares.side and not columns % squares.side
    if squares.alike and not (whole and rows == columns):
        raise UnfitPicture(
            f"a tile has {rows} x {columns} patches; a square of a multiple of {squares.side} is "
            "needed"
        )
    if not whole:
        raise UnfitPicture(
            f"a picture has {rows} x {columns} patches; multiples of {squares.side} are needed"
        )


def _cut(pixels: Tensor, rows: int, columns: int, patch: int) -> Tensor:
    """Cuts [tiles, channels, height, width] into [patches, channels * patch * patch]. What is left
    over at the right and below isn't seen."""
    tiles, channels = pixels.shape[:2]
    seen = pixels[:, :, : rows * patch, : columns * patch]
    apart = seen.reshape(tiles, channels, rows, patch, columns, patch)
    return apart.permute(0, 2, 4, 1, 3, 5).reshape(tiles * rows * columns, -1).contiguous()
