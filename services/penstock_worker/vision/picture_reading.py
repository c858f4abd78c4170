"""How the tensors of a prepared item become a picture.

Preparations give either pixels, [tiles, channels, rows, columns], or patches that are cut already
and stand in order of the squares that become a row (Qwen2-VL).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from penstock.forms.aspects import aspect_forms
from penstock.forms.overlaps import NO_MARK
from penstock.model.document_spec import QUARTER, DocumentProjector, PageProjector
from penstock.model.projector_spec import (
    AdapterProjector,
    AnyresProjector,
    HalvingProjector,
    PooledProjector,
    ResamplerProjector,
    SheetProjector,
    ShuffleProjector,
    SquareMLPProjector,
    SquarePoolProjector,
    SquaresProjector,
)
from penstock.model.tower_spec import AspectSpec, AxialPositions, LearnedPositions, VisionSpec
from penstock_worker.vision.picture import Picture, UnfitPicture, anyres_of, sheet_of

PIXELS = "pixel_values"
GRID = "grid_thw"
SHAPES = "spatial_shapes"
SIZE = "image_size"
TILES = "tile_grid"
POOLED, MARKS = "pooled", "marks"
MAX_SIDE = 1 << 20


def read_picture(tensors: Mapping[str, np.ndarray], spec: VisionSpec) -> Picture:
    """Raises UnfitPicture for other tensors than the tower takes."""
    if isinstance(spec.projector, SquaresProjector):
        return _of_patches(tensors, spec, spec.projector.side)
    if isinstance(spec.projector, SheetProjector):
        return _of_sheet(tensors, spec, spec.projector)
    if isinstance(spec.projector, PooledProjector):
        return _in_crops(tensors, spec, spec.projector)
    if isinstance(spec.projector, AnyresProjector):
        return _of_any_size(tensors, spec, spec.projector)
    if spec.tower.aspects is not None:
        return _on_canvas(tensors, spec, spec.tower.aspects)
    positions = spec.tower.positions
    learned = isinstance(positions, LearnedPositions) and (
        positions.stretched or positions.of_parts
    )
    if learned or isinstance(spec.projector, HalvingProjector | ResamplerProjector):
        return _of_parts(tensors, spec)
    return of_pixels(tensors, spec)


def _of_any_size(
    tensors: Mapping[str, np.ndarray], spec: VisionSpec, projector: AnyresProjector
) -> Picture:
    if SIZE not in tensors:
        return replace(of_pixels(tensors, spec), frames=True)
    _, size = _only(tensors, PIXELS, SIZE)
    if size.shape != (2,) or size.dtype != np.int32 or not (1 <= size.min() <= MAX_SIDE):
        raise UnfitPicture(f"{SIZE} is {size.dtype} of shape {size.shape}; 2 int32 are needed")
    if size.max() > MAX_SIDE:
        raise UnfitPicture(f"{SIZE} is {size.max()}; at most {MAX_SIDE} pixels are allowed")
    height, width = (int(each) for each in size)
    plain = of_pixels({PIXELS: tensors[PIXELS]}, spec)
    picture = replace(plain, size=(height, width))
    form = anyres_of(picture, spec, projector).form
    if picture.tiles != 1 + form[0] * form[1]:
        raise UnfitPicture(
            f"a picture of {width} x {height} pixels has {picture.tiles} tiles; "
            f"{1 + form[0] * form[1]} are needed"
        )
    return picture


def _on_canvas(tensors: Mapping[str, np.ndarray], spec: VisionSpec, aspects: AspectSpec) -> Picture:
    """The tiles of a canvas."""
    pixels, grid = _only(tensors, PIXELS, TILES)
    plain = of_pixels({PIXELS: pixels}, spec)
    form = tuple(int(count) for count in grid)
    if grid.dtype != np.int32 or form not in aspect_forms(aspects.most):
        raise UnfitPicture(f"{TILES} is {grid.dtype} {form}; up to {aspects.most} tiles are needed")
    if plain.tiles != form[0] * form[1]:
        raise UnfitPicture(f"a picture on {form[0]} x {form[1]} tiles has {plain.tiles}")
    return replace(plain, form=form)


def _of_sheet(
    tensors: Mapping[str, np.ndarray], spec: VisionSpec, projector: SheetProjector
) -> Picture:
    """The whole of a sheet and its tiles."""
    pixels, size, grid = _only(tensors, PIXELS, SIZE, TILES)
    plain = of_pixels({PIXELS: pixels}, spec)
    for name, each in ((SIZE, size), (TILES, grid)):
        if each.shape != (2,) or each.dtype != np.int32 or not 1 <= each.min() <= MAX_SIDE:
            raise UnfitPicture(f"{name} is {each.dtype} of shape {each.shape}; 2 int32 are needed")
    tile, (rows, columns) = plain.rows * spec.tower.patch, grid.tolist()
    missing = grid.astype(np.int64) * tile - size
    if plain.tiles != 1 + rows * columns or missing.min() < 0 or missing.max() >= tile:
        raise UnfitPicture(
            f"a picture of {size[1]} x {size[0]} pixels on {rows} x {columns} tiles of {tile} has "
            f"{plain.tiles} with the whole"
        )
    if projector.whole:
        if missing.any():
            raise UnfitPicture(
                f"{SIZE} is {size.tolist()}; all of {rows} x {columns} tiles is seen"
            )
        return replace(plain, form=(rows, columns))
    seen = sheet_of(size.tolist(), (rows, columns), spec)
    side = plain.rows
    shown = [
        (min(side, seen[0] - row * side), min(side, seen[1] - column * side))
        for row in range(rows)
        for column in range(columns)
    ]
    return replace(plain, form=(rows, columns), shown=((side, side), *shown))


def _in_crops(
    tensors: Mapping[str, np.ndarray], spec: VisionSpec, projector: PooledProjector
) -> Picture:
    pixels, pooled, marks = _only(tensors, PIXELS, POOLED, MARKS)
    plain = of_pixels({PIXELS: pixels}, spec)
    if pooled.ndim != 2 or marks.shape != pooled.shape[:1] or not pooled.size:
        raise UnfitPicture(f"{POOLED} has shape {pooled.shape}, and {MARKS} {marks.shape}")
    if {pooled.dtype, marks.dtype} != {np.dtype(np.int32)}:
        raise UnfitPicture(f"{POOLED} is {pooled.dtype}, and {MARKS} {marks.dtype}; not int32")
    count = plain.tiles * plain.per_tile
    made = pooled[marks == NO_MARK]
    if min(pooled.min(), marks.min()) < -1 or pooled.max() >= count:
        raise UnfitPicture(f"{POOLED} has patches that aren't among {count}")
    if marks.max() >= projector.tokens or (made.max(1, initial=-1) < 0).any():
        raise UnfitPicture(f"{MARKS} has tokens that aren't among {projector.tokens}, or none")
    rows, tokens = (torch.from_numpy(each.astype(np.int64)) for each in (pooled, marks))
    return replace(plain, pooled=rows, marks=tokens)


def _only(tensors: Mapping[str, np.ndarray], *names: str) -> list[np.ndarray]:
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


def _of_patches(tensors: Mapping[str, np.ndarray], spec: VisionSpec, side: int) -> Picture:
    pixels, grid = _only(tensors, PIXELS, GRID)
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


def _of_parts(tensors: Mapping[str, np.ndarray], spec: VisionSpec) -> Picture:
    """Tiles of one size, and behind them some of another; of a video's frames again and again."""
    tiled = isinstance(spec.projector, PageProjector)
    pixels, shapes, *grid = _only(tensors, PIXELS, SHAPES, *((TILES,) if tiled else ()))
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
        _check_form(*form, spec)
    alike = [(form, len(list(each))) for form, each in groupby(forms)]
    ordered = (DocumentProjector, PageProjector, HalvingProjector)
    if len(alike) > 2 and isinstance(spec.projector, ordered):
        raise UnfitPicture(f"{SHAPES} have parts that are not in order")
    found = torch.from_numpy(pixels.copy())
    parts = found.split([tiles * rows * columns for (rows, columns), tiles in alike])
    picture: Picture | None = None
    for part, (form, tiles) in zip(reversed(parts), reversed(alike), strict=True):
        picture = Picture(part, tiles, *form, behind=picture)
    if picture is None:
        raise UnfitPicture(f"{SHAPES} name no parts")
    return _with_grid(picture, grid[0]) if tiled else picture


def _with_grid(picture: Picture, grid: np.ndarray) -> Picture:
    """The picture with the form of its tiles before the last one."""
    if grid.shape != (2,) or grid.dtype != np.int32:
        raise UnfitPicture(f"{TILES} is {grid.dtype} of shape {grid.shape}; 2 int32 are needed")
    rows, columns = (int(each) for each in grid)
    tiles, pages = 0, picture.tiles
    if picture.behind is not None:
        tiles, pages = picture.tiles, picture.behind.tiles
    if min(rows, columns) < 0 or rows * columns != tiles or pages != 1:
        raise UnfitPicture(
            f"{TILES} is {rows} x {columns}; the picture has {tiles} tiles and {pages} pages"
        )
    return replace(picture, form=(rows, columns)) if tiles else picture


def of_pixels(tensors: Mapping[str, np.ndarray], spec: VisionSpec) -> Picture:
    """Tiles of one size, in pixels. Raises UnfitPicture."""
    (pixels,) = _only(tensors, PIXELS)
    tower, pixels = spec.tower, _floats(pixels, 4)
    tiles, channels, height, width = pixels.shape
    fixed = spec.image_size
    if channels != tower.channels or (fixed is not None and (height, width) != (fixed, fixed)):
        size = "rows x columns" if fixed is None else f"{fixed} x {fixed}"
        raise UnfitPicture(
            f"{PIXELS} have shape {pixels.shape}; tiles x {tower.channels} x {size} are needed"
        )
    rows, columns = height // tower.patch, width // tower.patch
    _check_form(rows, columns, spec)
    return Picture(
        _cut(torch.from_numpy(pixels.copy()), rows, columns, tower.patch), tiles, rows, columns
    )


def _check_form(rows: int, columns: int, spec: VisionSpec) -> None:
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
    factor = 1
    if isinstance(spec.projector, (SquareMLPProjector, AdapterProjector, SquarePoolProjector)):
        factor = spec.projector.factor * spec.tower.merged
    elif isinstance(spec.projector, HalvingProjector):
        factor = QUARTER
    if rows % factor or columns % factor:
        raise UnfitPicture(
            f"a picture has {rows} x {columns} patches; multiples of {factor} are needed"
        )
    if not isinstance(spec.projector, ShuffleProjector):
        return
    factor = spec.projector.factor
    if rows != columns or rows % factor:
        raise UnfitPicture(
            f"a tile has {rows} x {columns} patches; a square of a multiple of {factor} is needed"
        )


def _cut(pixels: Tensor, rows: int, columns: int, patch: int) -> Tensor:
    """Cuts [tiles, channels, height, width] into [patches, channels * patch * patch]. What is left
    over at the right and below isn't seen."""
    tiles, channels = pixels.shape[:2]
    seen = pixels[:, :, : rows * patch, : columns * patch]
    apart = seen.reshape(tiles, channels, rows, patch, columns, patch)
    return apart.permute(0, 2, 4, 1, 3, 5).reshape(tiles * rows * columns, -1).contiguous()
