"""What encodes the items of a model that both sees and hears."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from penstock_worker.media.hearing import MEL
from penstock_worker.media.interface import Sees
from penstock_worker.media.pieces import Pieces


class BothSenses:
    """Gives each item to what encodes its kind, which its tensors tell."""

    def __init__(self, sees: Sees, hears: Sees) -> None:
        self._sees = sees
        self._hears = hears

    def check(self, tensors: Mapping[str, np.ndarray], rows: int, grid: tuple[int, ...]) -> int:
        return self._of(tensors).check(tensors, rows, grid)

    def encode(self, tensors: Mapping[str, np.ndarray]) -> Tensor:
        return self._of(tensors).encode(tensors)

    def pieces(self, tensors: Mapping[str, np.ndarray]) -> Pieces[Tensor]:
        return self._of(tensors).pieces(tensors)

    def _of(self, tensors: Mapping[str, np.ndarray]) -> Sees:
        return self._hears if MEL in tensors else self._sees
