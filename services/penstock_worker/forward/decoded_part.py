"""Shared by backends that compute an encoder-decoder model: the decoder's tokens follow the
encoder's rows, and are a chunk of positions of their own."""

from __future__ import annotations

import numpy as np

from penstock.model.config import ModelConfig
from penstock_worker.attention.encoded import Division
from penstock_worker.forward.interface import Batch


def encoder_obstacle(config: ModelConfig) -> str | None:
    """Returns why the kernels can't compute a decoder with such an encoder, or None: a decoder's
    tokens must be a chunk of positions as long as the encoder's."""
    rows, positions = config.encoder_rows, config.learned_positions
    if rows and positions > rows:
        return f"a decoder of {positions} positions beside {rows} rows of an encoder"
    return None


def decoded_part(batch: Batch, division: Division, encoder_rows: int) -> Batch:
    """Returns the part of the batch that a decoder computes."""
    having = division.counts.nonzero()[0].tolist()
    return Batch(
        tokens=batch.tokens[division.decoded],
        tables=[batch.tables[at] for at in having],
        starts=np.maximum(batch.starts, encoder_rows)[having],
        counts=division.counts[having],
    )
