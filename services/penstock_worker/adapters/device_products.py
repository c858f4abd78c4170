"""Products and tables on a device to which the rows' adapters are added. Rows without an adapter
stay as they are, bit by bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from penstock_kernels.triton.experts.low_rank import FactorsOfExperts, add_low_rank_experts
from penstock_kernels.triton.experts.placing import ExpertTiles
from penstock_kernels.triton.linear.low_rank import AdapterTiles, LowRankFactors, add_low_rank
from penstock_kernels.triton.linear.own_matrices import (
    OwnMatrices,
    add_looked_up,
    replace_products,
    replace_rows,
)
from penstock_worker.quantisation.interface import Product, Table


class RowTiles(Protocol):
    """The adapters of the rows that are being computed."""

    tiles: AdapterTiles | None
    """Tiles of the rows with adapters; None if no row has one."""


@dataclass
class AdaptedPlaces:
    """What all places have for a product or a table. Known once their memory has been taken."""

    factors: LowRankFactors | None = None
    matrices: OwnMatrices | None = None
    """Matrices in the place of the model's own; None: adapters bring none."""


@dataclass
class DeviceAdaptedExperts:
    """What rows' adapters add to a product of each expert."""

    rows: RowTiles
    factors: FactorsOfExperts | None = None
    """Factors of all places. Known once their memory has been taken."""

    def add(self, x: Tensor, out: Tensor, placed: ExpertTiles) -> None:
        """`x`: the product's input; `out`: [pairs, outputs], to which it is added."""
        if self.rows.tiles is not None and self.factors is not None:
            add_low_rank_experts(x, out, self.factors, placed, self.rows.tiles.of_row)


@dataclass(frozen=True)
class DeviceAdaptedProduct:
    """A Product."""

    product: Product
    rows: RowTiles
    places: AdaptedPlaces

    def __call__(self, x: Tensor) -> Tensor:
        out, tiles, places = self.product(x), self.rows.tiles, self.places
        if tiles is not None:
            if places.matrices is not None:
                replace_products(x, out, places.matrices, tiles)
            if places.factors is not None:
                add_low_rank(x, out, places.factors, tiles)
        return out


@dataclass(frozen=True)
class DeviceAdaptedTable:
    """A Table."""

    table: Table
    adapters: RowTiles
    places: AdaptedPlaces

    @property
    def rows(self) -> int:
        return self.table.rows

    def __call__(self, ids: Tensor) -> Tensor:
        out, tiles, places = self.table(ids), self.adapters.tiles, self.places
        if tiles is not None:
            if places.matrices is not None:
                replace_rows(ids, out, places.matrices, tiles)
            if places.factors is not None:
                add_looked_up(ids, out, places.factors, tiles)
        return out
