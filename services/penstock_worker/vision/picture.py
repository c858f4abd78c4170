"""A prepared picture as a tower reads it: its patches, and how they lie.

Preparations give either pixels, [tiles, channels, rows, columns], or patches that are cut already
and stand in order of the squares that become a row (Qwen2-VL).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from penstock.media import geometry, sheets
from penstock.model.document_spec import QUARTER, DocumentProjector, PageProjector
from penstock.model.projector_spec import (
    AdapterProjector,
    AnyresProjector,
    ClassProjector,
    HalvingProjector,
    MLPProjector,
    ProbeProjector,
    SheetProjector,
    ShuffleProjector,
    SquareMLPProjector,
    SquarePoolProjector,
    SquaresProjector,
)
from penstock.model.tower_spec import AxialPositions, LearnedPositions, VisionSpec
from penstock_worker.media.unfit import UnfitItem

PIXELS = "pixel_values"
GRID = "grid_thw"
SHAPES = "spatial_shapes"
SIZE = "image_size"
TILES = "tile_grid"
MAX_SIDE = 1 << 20


class UnfitPicture(UnfitItem):
    """The tower can't take the picture. The message is for whoever sent it."""


@dataclass(frozen=True)
class Picture:
    """The patches of one item."""

    patches: Tensor
    """The numbers of each patch, [tiles * rows * columns, channels * frames * patch * patch]
    float32."""
    tiles: int
    """Equal parts that don't see one another: tiles of a picture, or frames."""
    rows: int
    """Rows of patches in a tile."""
    columns: int
    size: tuple[int, int] = (0, 0)
    """Rows and columns of pixels before the picture was prepared, of a tower that needs them."""

    frames: bool = False
    """Whether the tiles are frames of a video, of a tower that makes fewer rows of these."""

    form: tuple[int, int] = (1, 1)
    """Rows and columns of tiles, of a tower that needs them."""

    shown: tuple[tuple[int, int], ...] = ()
    """Rows and columns of patches of each tile that others see, which begin at the top left; empty:
    all are seen."""

    behind: Picture | None = None
    """Further tiles, of another size: the whole of a picture that was cut, or what was cut of it;
    and behind these the same of a video's next frame."""

    def parts(self) -> Iterator[Picture]:
        """This one and those behind it."""
        part: Picture | None = self
        while part is not None:
            yield part
            part = part.behind

    @property
    def per_tile(self) -> int:
        return self.rows * self.columns

    def merged(self, side: int) -> Picture:
        """The form of a picture whose squares of side x side patches have become one each."""
        if side == 1:
            return self
        return replace(self, rows=self.rows // side, columns=self.columns // side)


def read_picture(tensors: Mapping[str, np.ndarray], spec: VisionSpec) -> Picture:
    """Raises UnfitPicture for other tensors than the tower takes."""
    if isinstance(spec.projector, SquaresProjector):
        return _of_patches(tensors, spec, spec.projector.side)
    if isinstance(spec.projector, SheetProjector):
        return _of_sheet(tensors, spec)
    if isinstance(spec.projector, AnyresProjector):
        return _of_any_size(tensors, spec, spec.projector)
    positions = spec.tower.positions
    learned = isinstance(positions, LearnedPositions) and (
        positions.stretched or positions.of_parts
    )
    if learned or isinstance(spec.projector, HalvingProjector):
        return _of_parts(tensors, spec)
    return _of_pixels(tensors, spec)


def anyres_of(
    picture: Picture, spec: VisionSpec, projector: AnyresProjector
) -> geometry.AnyresShape:
    """How the picture's tiles after the first one become rows."""
    side = projector.side(picture.rows)
    return geometry.anyres_shape(
        picture.size, projector.forms, spec.image_size or 1, side, projector.most
    )


def in_squares(vectors: Tensor, picture: Picture, side: int) -> Tensor:
    """Puts the vectors of each square of side x side patches one after the other: [squares, side *
    side * size]. Squares are in order of their rows, and a square's patches too."""
    tiles = vectors.view(picture.tiles, picture.rows, picture.columns, -1)
    return squares_of(tiles, side).flatten(1)


def squares_of(tiles: Tensor, side: int) -> Tensor:
    """Maps [tiles, rows, columns, size] to [squares, side * side, size]."""
    count, rows, columns, size = tiles.shape
    apart = tiles.reshape(count, rows // side, side, columns // side, side, size)
    return apart.transpose(2, 3).reshape(-1, side * side, size).contiguous()


def in_lines(rows: Tensor, side: int, shape: geometry.AnyresShape, newline: Tensor) -> Tensor:
    """Rows of tiles of side x side, [rows, size], as rows of a picture: the first tile's, then
    those of the others as lines of one picture, each ended by `newline`, [size]."""
    first, others = rows[: side * side], rows[side * side :]
    tiles = others.unflatten(0, (*shape.form, side, side))
    whole = tiles.permute(4, 0, 2, 1, 3).flatten(1, 2).flatten(2, 3)
    high, wide = whole.shape[1:]
    top, left = shape.bars
    seen = whole[:, top : high - top, left : wide - left].contiguous()
    if seen.shape[1:] != (shape.rows, shape.columns):
        size = [shape.rows, shape.columns]
        seen = functional.interpolate(seen[None], size, mode="bilinear")[0]
    ends = newline[:, None, None].expand(-1, shape.rows, 1)
    lines = torch.cat((seen, ends), 2).flatten(1).t()
    return torch.cat((first, lines)).contiguous()


def _of_any_size(
    tensors: Mapping[str, np.ndarray], spec: VisionSpec, projector: AnyresProjector
) -> Picture:
    if SIZE not in tensors:
        return replace(_of_pixels(tensors, spec), frames=True)
    _, size = _only(tensors, PIXELS, SIZE)
    if size.shape != (2,) or size.dtype != np.int32 or not (1 <= size.min() <= MAX_SIDE):
        raise UnfitPicture(f"{SIZE} is {size.dtype} of shape {size.shape}; 2 int32 are needed")
    if size.max() > MAX_SIDE:
        raise UnfitPicture(f"{SIZE} is {size.max()}; at most {MAX_SIDE} pixels are allowed")
    height, width = (int(each) for each in size)
    plain = _of_pixels({PIXELS: tensors[PIXELS]}, spec)
    picture = replace(plain, size=(height, width))
    form = anyres_of(picture, spec, projector).form
    if picture.tiles != 1 + form[0] * form[1]:
        raise UnfitPicture(
            f"a picture of {width} x {height} pixels has {picture.tiles} tiles; "
            f"{1 + form[0] * form[1]} are needed"
        )
    return picture


def _of_sheet(tensors: Mapping[str, np.ndarray], spec: VisionSpec) -> Picture:
    """The whole of a sheet and its tiles."""
    pixels, size, grid = _only(tensors, PIXELS, SIZE, TILES)
    plain = _of_pixels({PIXELS: pixels}, spec)
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
    seen = sheet_of(size.tolist(), (rows, columns), spec)
    side = plain.rows
    shown = [
        (min(side, seen[0] - row * side), min(side, seen[1] - column * side))
        for row in range(rows)
        for column in range(columns)
    ]
    return replace(plain, form=(rows, columns), shown=((side, side), *shown))


def sheet_of(size: tuple[int, int], form: tuple[int, int], spec: VisionSpec) -> tuple[int, int]:
    """Rows and columns of patches on a sheet that others see."""
    return sheets.shown(size, form, spec.image_size or 1, spec.tower.patch)


def rows_of(picture: Picture, spec: VisionSpec) -> int:
    """How many embeddings the picture becomes."""
    ended = isinstance(spec.projector, (DocumentProjector, PageProjector))
    return sum(_rows_of_part(part, spec) for part in picture.parts()) + ended


def _rows_of_part(picture: Picture, spec: VisionSpec) -> int:
    """Rows of the tiles of one size, without what stands behind the last."""
    projector, picture = spec.projector, picture.merged(spec.tower.merged)
    match projector:
        case MLPProjector():
            return picture.tiles * (picture.per_tile + spec.tower.keeps_class)
        case ShuffleProjector() | SquareMLPProjector() | AdapterProjector() | SquarePoolProjector():
            return picture.tiles * picture.per_tile // projector.factor**2
        case AnyresProjector() if picture.frames:
            return picture.tiles * prod(pooled_side(picture)) + 1
        case AnyresProjector():
            shape = anyres_of(picture, spec, projector)
            return projector.side(picture.rows) ** 2 + shape.rows * (shape.columns + 1)
        case SquaresProjector():
            return picture.tiles * picture.per_tile // projector.side**2
        case ClassProjector() | ProbeProjector():
            return picture.tiles
        case DocumentProjector():
            table = projector.table_of(projector.vectors_of(picture.rows, picture.columns))
            return picture.tiles * projector.queries[table]
        case SheetProjector():
            last = picture.shown[-1]
            seen = tuple(
                (count - 1) * picture.rows + own
                for count, own in zip(picture.form, last, strict=True)
            )
            return sheets.rows_of((seen[0], seen[1]), picture.rows, projector.factor)
        case PageProjector():
            return projector.rows_of(picture.rows, picture.columns, picture.form)
        case HalvingProjector():
            return picture.tiles * picture.per_tile // QUARTER**2
        case _:
            return picture.tiles * projector.side**2


def pooled_side(picture: Picture) -> tuple[int, int]:
    """Rows and columns of embeddings of a frame."""
    return -(-picture.rows // 2), -(-picture.columns // 2)


def grid_of(picture: Picture, spec: VisionSpec) -> tuple[int, ...] | None:
    """MediaItem.grid of a picture on which positions depend: frames, rows and columns of merged
    patches; None where they depend on nothing. How far apart frames are isn't seen in them."""
    if not isinstance(spec.projector, SquaresProjector):
        return None
    side = spec.projector.side
    return picture.tiles, picture.rows // side, picture.columns // side


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


def _of_pixels(tensors: Mapping[str, np.ndarray], spec: VisionSpec) -> Picture:
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
