"""Vectors of patches between two norms, and the row that ends a picture (NormedTwiceProjector)."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.model.projector_spec import NormedTwiceProjector
from penstock_worker.media.embedder import EmbedderRows
from penstock_worker.media.pieces import Pieces
from penstock_worker.vision.picture import Picture
from penstock_worker.vision.projector import Projector, ProjectorParts
from penstock_worker.vision.rows import RowThreads


class PictureEmbedder(Projector[NormedTwiceProjector], of=NormedTwiceProjector):
    ENDS = 1

    def __init__(self, spec: NormedTwiceProjector, around: ProjectorParts) -> None:
        super().__init__(spec, around)
        self._embedder = EmbedderRows(
            spec, around.weights, around.inputs, around.outputs, [spec.end]
        )
        self._work = self._embedder.row_work

    def pieces(self, vectors: Tensor, picture: Picture, threads: RowThreads) -> Pieces[Tensor]:
        large = vectors * vectors.shape[1] ** 0.5
        (end,) = self._embedder.own
        rows = yield from threads.mapped(
            lambda some: self._embedder.rows(some, self._embedder.norm), large, each=self._work
        )
        return torch.cat((rows, end))
