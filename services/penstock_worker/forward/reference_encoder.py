"""The reference's forward pass of a decoder that attends to an encoder's output.

A batch has rows of encoders, whose keys and values are stored, and rows of decoders, which go
through the layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from penstock_kernels.reference.tiling import pad_rows, padded_rows
from penstock_worker.alignment.interface import Crossing
from penstock_worker.attention.encoded import (
    DividedStep,
    DividingCache,
    EncodedAttention,
    ObservedEncoded,
)
from penstock_worker.attention.interface import BatchLayout
from penstock_worker.attention.pictures_apart import PicturesApartCache
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.layer_by_layer import LayerByLayer
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.parallel.ranks import ALONE, Ranks


class EncoderDecoderForward(LayerByLayer):
    """The forward pass in plain torch."""

    def __init__(
        self,
        model: DecoderModel,
        cache: DividingCache,
        ranks: Ranks = ALONE,
        heads: Sequence[tuple[int, int]] = (),
    ) -> None:
        """heads: (layer, head) of those that `crossing` shows."""
        super().__init__(ranks.check)
        self._heads = heads
        self._model = model
        self._cache = cache

    def count_layer(self) -> None:
        """Counts a layer of the encoder's. Raises what `logits` raises."""
        self._count_layer()

    def kv_blocks(self) -> list[np.ndarray]:
        return self._cache.kv_blocks()

    def logits(self, batch: Batch, rows: np.ndarray) -> Tensor:
        """Logits as Forward has them. Those of an encoder's rows are zeros."""
        step = self._divided(batch)
        self._store(batch, step.encoded)
        places, found = step.division.find(rows)
        logits = torch.zeros(len(rows), self._model.config.vocab_size)
        if len(step.division.decoded):
            hidden = self._decoded(batch.tokens, step)
            logits[torch.from_numpy(places)] = self._model.logits(hidden[torch.from_numpy(found)])
        return logits

    def crossing(self, batch: Batch) -> Crossing:
        """Computes every row of a batch, and shows its attention to the encoder's output (see
        Crosses)."""
        step = self._divided(batch)
        seen = ObservedEncoded(step.encoded, self._heads)
        self._store(batch, seen)
        decoded = len(step.division.decoded)
        if decoded:
            self._decoded(batch.tokens, replace(step, encoded=seen))
        stored, size = len(batch.tokens) - decoded, self._model.config.head_dim
        return Crossing(seen.queries(decoded, size), seen.keys(stored, size))

    def _divided(self, batch: Batch) -> DividedStep:
        media = batch.media
        stored = np.empty(0, np.int64)
        if media is not None and media.embeddings is not None:
            stored = media.rows
        return self._cache.divide(BatchLayout(batch.tables, batch.starts, batch.counts), stored)

    def _store(self, batch: Batch, encoded: EncodedAttention) -> None:
        media = batch.media
        if media is not None and media.embeddings is not None:
            encoding = media.embeddings.to(self._model.dtype)
            self._model.store_encoded(pad_rows(encoding), encoded)

    def _decoded(self, tokens: np.ndarray, step: DividedStep) -> Tensor:
        """The last layer's output of the decoders' rows, [rows, hidden], with padding."""
        division = step.division
        padding = (0, padded_rows(len(division.decoded)) - len(division.decoded))
        return self._model.hidden(
            torch.from_numpy(np.pad(tokens[division.decoded], padding)),
            torch.from_numpy(np.pad(division.positions, padding)),
            step.own,
            self._count_layer,
            encoded=step.encoded,
        )


class PicturesApartForward(EncoderDecoderForward):
    """The forward pass of a decoder that sees pictures in some of its layers alone: their rows,
    wherever they stand among tokens, take an encoder's place."""

    def __init__(
        self, model: DecoderModel, cache: PicturesApartCache, ranks: Ranks = ALONE
    ) -> None:
        super().__init__(model, cache, ranks)
        self._apart = cache

    def _divided(self, batch: Batch) -> DividedStep:
        media = batch.media
        stored, spans = np.empty(0, np.int64), None
        if media is not None:
            spans = media.spans
            if media.embeddings is not None:
                stored = media.rows
        layout = BatchLayout(batch.tables, batch.starts, batch.counts)
        return self._apart.divide_at(layout, stored, spans)
