"""Messages between pipeline stages, which stay outside of CUDA graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_worker.models.decoder import DecoderModel


class StageEnds:
    """Receives a stage's input before its graph runs, and sends its output afterwards."""

    def __init__(
        self, model: DecoderModel, rows: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`rows` is the most rows of a step. `before`, [rows, hidden], is where a graph reads what
        the previous stage sent; None in the first stage."""
        self._model = model
        self.before: Tensor | None = None
        if not model.shard.place.first:
            self.before = torch.zeros(rows, model.config.hidden_size, dtype=dtype, device=device)

    def enter(self, rows: int) -> None:
        given = self._model.receive(rows)
        if given is not None and self.before is not None:
            self.before[:rows].copy_(given)

    def leave(self, hidden: Tensor) -> None:
        if not self._model.shard.place.last:
            # A clone, because it is still being sent when the next step overwrites `hidden`.
            self._model.send(hidden.clone())
