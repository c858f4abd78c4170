"""Turns the arrays of a prepared sound into its encoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor

from penstock_worker.audio.model import AudioModel
from penstock_worker.media.pieces import Pieces


class Hearing:
    """A model's tower."""

    def __init__(self, model: AudioModel, layer_done: Callable[[], None]) -> None:
        """`layer_done` is called after each of the tower's layers."""
        self._model = model
        self._layer_done = layer_done

    def check(self, tensors: Mapping[str, np.ndarray], rows: int, grid: tuple[int, ...]) -> int:
        return self._model.check(tensors, rows, grid)

    def encode(self, tensors: Mapping[str, np.ndarray]) -> Tensor:
        return self._model.encode(tensors, self._layer_done)

    def pieces(self, tensors: Mapping[str, np.ndarray]) -> Pieces[Tensor]:
        return self._model.pieces(tensors, self._layer_done)
