"""A step of an encoder-decoder model: its rows are an encoder's, which one program stores, and a
decoder's, which another computes over the same cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock_worker.alignment.interface import Crossing
from penstock_worker.attention.encoded import Division
from penstock_worker.forward.cpu.crossings import ShownHeads
from penstock_worker.forward.decoded_part import decoded_part
from penstock_worker.forward.interface import Batch, Forward
from penstock_worker.media.interface import BatchMedia

_NO_ROWS = np.empty(0, dtype=np.int64)


@dataclass
class CPUEncoderDecoder:
    """Adapts two programs to the interface `Forward`."""

    stores: Forward
    """Stores the keys and values of an encoder's rows."""
    decoder: Forward
    encoder_rows: int
    vocab: int
    shown: ShownHeads | None = None
    """What `crossing` gives; None: nobody knows which heads."""

    @property
    def layers_done(self) -> int:
        return sum(each.layers_done for each in self._forwards)

    @property
    def _forwards(self) -> tuple[Forward, ...]:
        shown = self.shown
        return self.stores, self.decoder, *(() if shown is None else shown.forwards)

    def cancel(self) -> None:
        for each in self._forwards:
            each.cancel()

    def kv_blocks(self) -> list[np.ndarray]:
        return self.decoder.kv_blocks()

    def logits(self, batch: Batch, rows: np.ndarray) -> Tensor:
        """Logits as Forward has them. Those of an encoder's rows are zeros."""
        division = Division.of(batch.starts, batch.counts, self.encoder_rows)
        if len(division.decoded) < len(batch.tokens):
            self.stores.logits(_encoded(batch, division), _NO_ROWS)
        places, found = division.find(rows)
        logits = torch.zeros(len(rows), self.vocab)
        if len(division.decoded):
            decoded = self.decoder.logits(decoded_part(batch, division, self.encoder_rows), found)
            logits[torch.from_numpy(places)] = decoded
        return logits

    def crossing(self, batch: Batch) -> Crossing:
        """Computes every row of a batch, and shows its attention to the encoder's output (see
        Crosses)."""
        if self.shown is None:
            raise ValueError("no heads are shown")
        division = Division.of(batch.starts, batch.counts, self.encoder_rows)
        decoded = len(division.decoded)
        keys = self.shown.keys(_encoded(batch, division) if decoded < len(batch.tokens) else None)
        rows = decoded_part(batch, division, self.encoder_rows) if decoded else None
        return Crossing(self.shown.queries(rows), keys)


def _encoded(batch: Batch, division: Division) -> Batch:
    """The part of it that is stored."""
    counts = batch.counts - division.counts
    having = counts.nonzero()[0].tolist()
    mine = np.ones(len(batch.tokens), dtype=bool)
    mine[division.decoded] = False
    media = batch.media
    if media is not None:
        # Which of the encoders' rows each row of the batch is.
        numbers = np.cumsum(mine) - 1
        media = BatchMedia(rows=numbers[media.rows], embeddings=media.embeddings)
    return Batch(
        tokens=batch.tokens[mine],
        tables=[batch.tables[at] for at in having],
        starts=batch.starts[having],
        counts=counts[having],
        media=media,
    )
