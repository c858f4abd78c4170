"""A prepared picture as a tower reads it: its patches, and how they lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from penstock.forms import anyres, sheets
from penstock.model.document_spec import QUARTER, DocumentProjector, PageProjector
from penstock.model.projector_spec import (
    AdapterProjector,
    AnyresProjector,
    ClassProjector,
    HalvingProjector,
    MLPProjector,
    NormedTwiceProjector,
    PlainProjector,
    PooledProjector,
    ProbeProjector,
    ResamplerProjector,
    SheetProjector,
    ShuffleProjector,
    SquareMLPProjector,
    SquarePoolProjector,
    SquaresProjector,
    TwoTowersProjector,
)
from penstock.model.tower_spec import VisionSpec
from penstock_worker.media.unfit import UnfitItem


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
    beside: Picture | None = None
    """A larger one of the same, for a second tower."""

    pooled: Tensor | None = None
    """[rows, n] int64: which patches each row is made of, of a tower whose tiles overlap; see
    `penstock.forms.overlaps.pooled`."""

    marks: Tensor | None = None
    """[rows] int64: which tokens stand among them."""

    def parts(self) -> Iterator[Picture]:
        """Yields this part and those behind it."""
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


def anyres_of(picture: Picture, spec: VisionSpec, projector: AnyresProjector) -> anyres.AnyresShape:
    """How the picture's tiles after the first one become rows."""
    side = projector.side(picture.rows)
    return anyres.anyres_shape(
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


def in_lines(rows: Tensor, side: int, shape: anyres.AnyresShape, newline: Tensor) -> Tensor:
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


def sheet_of(size: tuple[int, int], form: tuple[int, int], spec: VisionSpec) -> tuple[int, int]:
    """Rows and columns of patches on a sheet that others see."""
    return sheets.shown(size, form, spec.image_size or 1, spec.tower.patch)


def seen_on_sheet(picture: Picture) -> tuple[int, int]:
    """Rows and columns of patches of all tiles of a sheet that are seen, as of one picture."""
    last = picture.shown[-1] if picture.shown else (picture.rows, picture.columns)
    down, across = picture.form
    return (down - 1) * picture.rows + last[0], (across - 1) * picture.columns + last[1]


def rows_of(picture: Picture, spec: VisionSpec) -> int:
    """How many embeddings the picture becomes."""
    ended = isinstance(spec.projector, (DocumentProjector, PageProjector))
    return sum(_rows_of_part(part, spec) for part in picture.parts()) + ended


def _rows_of_part(picture: Picture, spec: VisionSpec) -> int:
    """Rows of the tiles of one size, without what stands behind the last."""
    projector, picture = spec.projector, picture.merged(spec.tower.merged)
    match projector:
        case MLPProjector() | TwoTowersProjector():
            return picture.tiles * (picture.per_tile + spec.tower.keeps_class)
        case PlainProjector():
            return picture.tiles * (picture.per_tile + spec.tower.keeps_class) + 1
        case NormedTwiceProjector():
            return picture.tiles * picture.per_tile + 1
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
        case ResamplerProjector():
            return picture.tiles * projector.queries
        case DocumentProjector():
            table = projector.table_of(projector.vectors_of(picture.rows, picture.columns))
            return picture.tiles * projector.queries[table]
        case SheetProjector():
            return sheets.rows_of(seen_on_sheet(picture), picture.rows, projector.factor)
        case PageProjector():
            return projector.rows_of(picture.rows, picture.columns, picture.form)
        case HalvingProjector():
            return picture.tiles * picture.per_tile // QUARTER**2
        case PooledProjector():
            return 0 if picture.marks is None else len(picture.marks)
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
