"""The places of a picture's patches: rows of a table of positions, angles, and windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from penstock.model.tower_spec import LearnedPositions, RotaryPositions, TowerSpec, VisionSpec
from penstock_kernels import reference
from penstock_worker.vision.picture import Picture, UnfitPicture

NEARLY_ONE = 1.0 - 1e-6
"""The largest share of a row at which a patch begins."""


@dataclass(frozen=True)
class PatchLayout:
    """How the rows of a tower belong together. Rows are patches, in an order of the tower's own,
    after each tile's class token where there is one."""

    lengths: list[int]
    """Rows of each part that attends to itself: a tile, or frames of a video."""
    windows: list[int]
    """Rows of each window, in layers that attend within windows; empty if there are none."""
    angles: tuple[Tensor, Tensor] | None
    """Cosines and sines by which a row's heads rotate, each [rows, head size / 2] float32."""
    order: Tensor | None
    """[squares] int64: which square of patches stands where; None: they stand as they came."""
    table: tuple[Tensor, Tensor] | None = None
    """Which rows of a stretched table each of a tile's patches has, as they came, [patches, n]
    int64, and how much of each, float32. n is 4, or 16 of a table that is stretched cubically."""
    seen: Tensor | None = None
    """[tiles, rows of a tile] bool: which of them others attend to; None: all."""

    def ordered(self, x: Tensor) -> Tensor:
        """Puts [patches, ...] in order."""
        if self.order is None:
            return x
        order = self.order.to(x.device)
        return x.unflatten(0, (len(order), -1))[order].flatten(0, 1)

    def as_they_came(self, rows: Tensor) -> Tensor:
        """Puts [squares, ...] back."""
        return rows if self.order is None else rows[torch.argsort(self.order).to(rows.device)]


def lay_out(picture: Picture, spec: VisionSpec) -> PatchLayout:
    tower, side = spec.tower, spec.projector.order
    order, angles, table = None, None, None
    windows: list[int] = []
    if tower.windows is not None and not tower.windows.grid:
        order, windows = _windows(picture, side, tower.windows.side // side)
    if tower.rotary is not None:
        turned = _timed_angles if tower.rotary.timed else _angles
        angles = turned(picture, tower, tower.rotary, side)
        if tower.class_token:
            angles = _beside_class(angles, picture.tiles)
        if tower.rotary.table:
            table = _around(picture, tower.rotary, side)
    seen = _seen(picture) if picture.shown else None
    layout = PatchLayout(seen_together(picture, tower), windows, None, order, table, seen)
    if angles is None:
        return layout
    return replace(layout, angles=(layout.ordered(angles[0]), layout.ordered(angles[1])))


def seen_together(picture: Picture, tower: TowerSpec) -> list[int]:
    """PatchLayout.lengths: of groups of TowerSpec.together tiles."""
    each, together = picture.per_tile + tower.class_token, tower.together or picture.tiles
    firsts = range(0, picture.tiles, together)
    return [each * min(together, picture.tiles - first) for first in firsts]


def _seen(picture: Picture) -> Tensor:
    """PatchLayout.seen of a picture whose tiles differ in what they show."""
    forms = torch.tensor(picture.shown)
    high = torch.arange(picture.rows) < forms[:, :1]
    wide = torch.arange(picture.columns) < forms[:, 1:]
    return (high[:, :, None] & wide[:, None]).flatten(1)


def table_rows(picture: Picture, positions: LearnedPositions) -> Tensor:
    """Which row of the table each patch of a tile has, without the class token's: [patches] int64,
    or [tiles, patches] where tiles differ in which of them are seen."""
    side = positions.side
    if picture.shown:
        return torch.stack([_shown_rows(picture, form, side) for form in picture.shown])
    if positions.fractional:
        exact = positions.of_parts
        row, column = (_shares(n, side, exact=exact) for n in (picture.rows, picture.columns))
        return (row[:, None] * side + column[None, :]).flatten()
    if (picture.rows, picture.columns) != (side, side):
        raise UnfitPicture(
            f"a picture has {picture.rows} x {picture.columns} patches; {side} x {side} are needed"
        )
    return torch.arange(side * side)


def _shown_rows(picture: Picture, form: tuple[int, int], side: int) -> Tensor:
    """The table's rows for a tile of which only the first `form` rows and columns of patches are
    seen: these get the rows that a picture of that size has, the others row 0."""
    high, wide = form
    found = torch.zeros(picture.rows, picture.columns, dtype=torch.int64)
    row, column = (_shares(count, side, exact=False) for count in form)
    found[:high, :wide] = row[:, None] * side + column[None, :]
    return found.flatten()


def stretched(table: Tensor, positions: LearnedPositions, form: tuple[int, int]) -> Tensor:
    """The table's vectors for a picture of so many rows and columns of patches, [rows * columns,
    hidden], in the table's dtype."""
    side, mode = positions.side, "bicubic" if positions.cubic else "bilinear"
    square = table.float().view(1, side, side, -1).permute(0, 3, 1, 2)
    found = functional.interpolate(square, size=form, mode=mode, antialias=True)
    return found[0].flatten(1).t().contiguous().to(table.dtype)


def _shares(count: int, side: int, *, exact: bool) -> Tensor:
    """The place in a row of `side` at which each of `count` patches begins. Bounds and shares are
    float32: where they nearly agree, trained models have learned what that gives. exact: see
    LearnedPositions.of_parts."""
    bounds = torch.arange(1 / side, 1.0, 1 / side)
    if exact:
        return torch.bucketize(torch.arange(count) / count, bounds, right=True)
    begins = torch.arange(count, dtype=torch.float32) * (1.0 / torch.tensor(count))
    return torch.bucketize(begins.clamp(max=NEARLY_ONE), bounds, right=True)


def _by_squares(picture: Picture, side: int) -> tuple[Tensor, Tensor]:
    """Row and column of each patch of a frame, [patches] int64, in order of the squares."""
    place = torch.arange(picture.per_tile).view(
        picture.rows // side, side, picture.columns // side, side
    )
    flat = place.transpose(1, 2).flatten()
    return flat // picture.columns, flat % picture.columns


def _angles(
    picture: Picture, tower: TowerSpec, positions: RotaryPositions, side: int
) -> tuple[Tensor, Tensor]:
    own = [reference.inverse_frequencies(tower.head_dim // 2, positions.theta)] * 2
    if positions.alternating:
        whole = reference.inverse_frequencies(tower.head_dim, positions.theta)
        own = [whole[0::2].contiguous(), whole[1::2].contiguous()]
    longest = max(picture.rows, picture.columns) + positions.first
    tables = [reference.rope_table(each, longest) for each in own]
    places = [each + positions.first for each in _by_squares(picture, side)]
    if positions.columns_first:
        places.reverse()
    both = [[tables[at][i][places[at]] for at in (0, 1)] for i in (0, 1)]
    if positions.by_turns:  # columns first
        cos, sin = (torch.stack(each[::-1], 2).flatten(1) for each in both)
    else:
        cos, sin = (torch.cat(each, 1) for each in both)
    return cos.repeat(picture.tiles, 1), sin.repeat(picture.tiles, 1)


def _timed_angles(
    picture: Picture, tower: TowerSpec, positions: RotaryPositions, side: int
) -> tuple[Tensor, Tensor]:
    """Angles by frame, row and column, one after the other."""
    together = min(tower.together or picture.tiles, picture.tiles)
    own = reference.inverse_frequencies(tower.head_dim // 6 * 2, positions.theta)
    table = reference.rope_table(own, max(picture.rows, picture.columns, together))
    row, column = (each.repeat(picture.tiles) for each in _by_squares(picture, side))
    frame = torch.arange(picture.tiles).repeat_interleave(picture.per_tile) % together
    cos, sin = (torch.cat([each[at] for at in (frame, row, column)], 1) for each in table)
    return cos, sin


def _beside_class(angles: tuple[Tensor, Tensor], tiles: int) -> tuple[Tensor, Tensor]:
    """Returns the angles with those of each tile's class token, which doesn't turn, before its
    patches'."""
    cos, sin = (each.unflatten(0, (tiles, -1)) for each in angles)
    still = torch.ones_like(cos[:, :1])
    return (
        torch.cat((still, cos), 1).flatten(0, 1),
        torch.cat((torch.zeros_like(still), sin), 1).flatten(0, 1),
    )


def _around(picture: Picture, positions: RotaryPositions, side: int) -> tuple[Tensor, Tensor]:
    """Returns PatchLayout.table for patches in order of squares of side x side."""
    table = positions.table
    near: Callable[[Tensor, int, int], tuple[Tensor, Tensor]] = _nearest_four
    if not positions.cubic:
        near = partial(_nearest, by_edges=positions.by_edges)
    row, column = _by_squares(picture, side)
    rows, of_rows = near(row, picture.rows, table)
    columns, of_columns = near(column, picture.columns, table)
    found = (rows[:, :, None] * table + columns[:, None, :]).flatten(1)
    return found, (of_rows[:, :, None] * of_columns[:, None, :]).flatten(1)


def _nearest(places: Tensor, count: int, table: int, *, by_edges: bool) -> tuple[Tensor, Tensor]:
    """The two of a table's places around each of `count` places that lie over all of it, and how
    near it is to either: each [patches, 2]. by_edges: see RotaryPositions."""
    exact = places.to(torch.float32) * (table - 1) / max(count - 1, 1)
    if by_edges:
        exact = ((places.to(torch.float32) + 0.5) * table / count - 0.5).clamp(0, table - 1)
    below = exact.floor()
    beyond = exact - below
    low = below.to(torch.int64)
    return (
        torch.stack((low, (low + 1).clamp(max=table - 1)), 1),
        torch.stack((1 - beyond, beyond), 1),
    )


CUBIC = -0.75
"""The slope of the cubic convolution's kernel at 1, as in torch (Keys, "Cubic convolution
interpolation for digital image processing", 1981)."""


def _nearest_four(places: Tensor, count: int, table: int) -> tuple[Tensor, Tensor]:
    """The four of a table's places around the middle of each of `count` places, which share all of
    it, and the weight of each in a cubic convolution: each [patches, 4]. Beyond an edge stands what
    is at it."""
    middle = (places.to(torch.float32) + 0.5) / count * table - 0.5
    below = middle.floor()
    beyond = middle - below
    taps = below.to(torch.int64)[:, None] + torch.arange(-1, 3)
    far = torch.stack((beyond + 1, 2 - beyond), 1)
    near = torch.stack((beyond, 1 - beyond), 1)
    of_far = ((CUBIC * far - 5 * CUBIC) * far + 8 * CUBIC) * far - 4 * CUBIC
    of_near = ((CUBIC + 2) * near - (CUBIC + 3)) * near * near + 1
    shares = torch.stack((of_far[:, 0], of_near[:, 0], of_near[:, 1], of_far[:, 1]), 1)
    return taps.clamp(0, table - 1), shares


def _windows(picture: Picture, side: int, window: int) -> tuple[Tensor, list[int]]:
    """The squares by window, and how many patches each window has. window: squares in a row of a
    window; those at the right and below may be narrower."""
    rows, columns = picture.rows // side, picture.columns // side
    squares = torch.arange(picture.tiles * rows * columns).view(picture.tiles, rows, columns)
    parts = [
        squares[tile, top : top + window, left : left + window].flatten()
        for tile in range(picture.tiles)
        for top in range(0, rows, window)
        for left in range(0, columns, window)
    ]
    return torch.cat(parts), [len(part) * side * side for part in parts]
