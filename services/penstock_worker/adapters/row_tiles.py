"""A step's rows in tiles of one adapter each, on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from penstock_kernels.triton.linear.low_rank import AdapterTiles
from penstock_kernels.triton.matmul_tiles import MatmulTiles


@dataclass(frozen=True)
class HostAdapterTiles:
    """Which rows are computed together, as AdapterTiles has them, int32 on the host."""

    shape: MatmulTiles
    order: np.ndarray
    places: np.ndarray
    firsts: np.ndarray
    counts: np.ndarray
    of_row: np.ndarray

    @property
    def arrays(self) -> list[np.ndarray]:
        return [self.order, self.places, self.firsts, self.counts, self.of_row]

    def on_device(self, tensors: Sequence[Tensor]) -> AdapterTiles:
        """`tensors` are `self.arrays`, copied there."""
        order, places, firsts, counts, of_row = tensors
        return AdapterTiles(self.shape, order, places, firsts, counts, of_row)


def tiles_shapes(rows: int, adapters: int, tile: int) -> list[tuple[int, ...]]:
    """Shapes of HostAdapterTiles.arrays with room for `rows` rows in any way, which have so many
    adapters, in tiles of `tile` rows: each adapter may have a tile that isn't full."""
    tiles = (rows + min(adapters, rows) * (tile - 1)) // tile
    return [(rows,), (tiles,), (tiles,), (tiles,), (rows,)]


def write_tiles(arrays: Sequence[np.ndarray], places: np.ndarray, tile: int) -> None:
    """Writes the tiles of these rows into int32 arrays of tiles_shapes, and 0 after them, or -1
    after the rows' own places. `places`: [rows], where each row's adapter lies; -1 for none."""
    order, of_tile, firsts, counts, of_row = arrays
    for array in arrays:
        array[:] = 0
    of_row[:] = -1
    of_row[: len(places)] = places
    rows = np.argsort(places, kind="stable")
    rows = rows[np.count_nonzero(places < 0) :]
    order[: len(rows)] = rows
    number = first = 0
    for place, count in zip(*np.unique(places[rows], return_counts=True), strict=True):
        for begin in range(0, count, tile):
            of_tile[number] = place
            firsts[number] = first + begin
            counts[number] = min(tile, count - begin)
            number += 1
        first += count


def tiles_of(places: np.ndarray, adapters: int, shape: MatmulTiles) -> HostAdapterTiles:
    """Returns the tiles of these rows. `adapters`: at most that many are among them."""
    sizes = tiles_shapes(len(places), adapters, shape.rows)
    arrays = [np.zeros(size, np.int32) for size in sizes]
    write_tiles(arrays, places, shape.rows)
    return HostAdapterTiles(shape, *arrays)
