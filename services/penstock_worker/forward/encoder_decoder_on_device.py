"""The forward pass on CUDA of a decoder that attends to an encoder's output.

Rows of encoders are stored, each layer's keys and values of them, in front of those of the
decoder's tokens. Rows of decoders go through the layers as any model's do, decodes as CUDA graphs.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from penstock_worker.attention.encoded import Division
from penstock_worker.forward.decoded_part import decoded_part
from penstock_worker.forward.interface import Batch
from penstock_worker.forward.queued import TritonForward


class EncoderDecoderOnDevice(TritonForward):
    """A DeviceForward."""

    def logits(self, batch: Batch, rows: np.ndarray) -> Tensor:
        """Logits as Forward has them. Those of an encoder's rows are zeros."""
        encoder_rows = self.attention.encoder_rows
        division = Division.of(batch.starts, batch.counts, encoder_rows)
        if len(division.decoded) == len(batch.tokens):
            return super().logits(batch, rows)
        self._store(batch)
        logits = torch.zeros(
            len(rows), self._model.config.vocab_size, dtype=torch.float32, device=self.device
        )
        if not len(division.decoded):
            return logits
        places, found = division.find(rows)
        decoded = super().logits(decoded_part(batch, division, encoder_rows), found)
        (where,) = self._uploads.send([places])
        return logits.index_copy_(0, where.long(), decoded)

    def _store(self, batch: Batch) -> None:
        media = batch.media
        if media is None or media.embeddings is None:
            return
        try:
            (slots,) = self._uploads.send([self._slots(batch)[media.rows]])
            encoding = media.embeddings.to(self._model.dtype)
            self._model.store_encoded(encoding, self.attention.stored_rows(slots))
        except torch.OutOfMemoryError:
            self._memory.release()
            raise

    def _slots(self, batch: Batch) -> np.ndarray:
        """Returns where each row of the batch is stored, [rows] int64."""
        size = self.attention.shape.block_size
        found = []
        for table, start, count in zip(
            batch.tables, batch.starts.tolist(), batch.counts.tolist(), strict=True
        ):
            at = np.arange(start, start + count)
            found.append(table[at // size] * size + at % size)
        return np.concatenate(found)
