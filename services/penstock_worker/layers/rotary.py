"""The tables of a model's rotary angles on its device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from penstock.model.rope_spec import RopeSpec
from penstock_worker.attention.interface import Rotation, SectionedRotation
from penstock_worker.layers.rotary_tables import AngleTables, tables_of
from penstock_worker.weights.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor


class Rotary:
    """Cosines and sines, each [positions, dims / 2] float32, for every position that may occur.
    They are computed on the CPU, so that all devices have the same values."""

    def __init__(
        self,
        tables: AngleTables,
        device: torch.device | None = None,
        axes: tuple[int, ...] = (),
    ) -> None:
        """axes: as in RopeSpec."""
        self._axes = torch.tensor(axes, dtype=torch.int64, device=device)
        self.cos, self.sin = (torch.from_numpy(each).to(device) for each in tables[:2])
        self.query_factors: Tensor | None = None
        """Factors of rotated queries, as in Rotation."""
        if tables.query_factors is not None:
            self.query_factors = torch.from_numpy(tables.query_factors).to(device)

    def at(self, positions: Tensor, by_time: Tensor | None = None) -> Rotation:
        """Returns the rotation for the rows of a step. `positions` is [rows] int64; `by_time` is
        [3, rows] int64, which matters where pairs turn by time, row and column."""
        if by_time is not None and len(self._axes):
            return SectionedRotation(
                self.cos, self.sin, positions, by_time=by_time, axes=self._axes
            )
        return Rotation(self.cos, self.sin, positions, self.query_factors)

    @staticmethod
    def load(spec: RopeSpec, weights: Weights, positions: int) -> Rotary:
        return Rotary(tables_of(spec, weights, positions), weights.device, spec.axes)
