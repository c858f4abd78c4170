"""Rows of a sound, filled up to as many as every sound has (EmbedderProjector)."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.model.sound_projector_spec import EmbedderProjector
from penstock_worker.media.embedder import EmbedderRows
from penstock_worker.media.sound_projector import SoundProjector
from penstock_worker.weights.weights import Weights


class Embedder(SoundProjector, of=EmbedderProjector):
    """Maps a sound's vectors to the rows of every sound."""

    def __init__(
        self, spec: EmbedderProjector, weights: Weights, inputs: int, outputs: int, at: str
    ) -> None:
        self._rows = EmbedderRows(spec, weights, inputs, outputs, [spec.filler, spec.end])
        self._vectors = spec.vectors

    def __call__(self, vectors: Tensor) -> Tensor:
        rows, (filler, end) = self._rows.rows(vectors, self._rows.norm), self._rows.own
        fillers = filler.expand(self._vectors - len(rows), -1)
        return torch.cat((rows, fillers, end))
