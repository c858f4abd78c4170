"""What stages say to one another, beside the graphs of their steps."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock_worker.models.decoder import DecoderModel


class StageEnds:
    """rows: that a step may have. before: [rows, hidden], where a step finds what the stage before
    gave; None in the first stage."""

    def __init__(
        self, model: DecoderModel, rows: int, dtype: torch.dtype, device: torch.device
    ) -> None:
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
            # It is on its way still when the next step computes.
            self._model.send(hidden.clone())
