"""What a model that sees adds to a program, and to its steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from penstock.model.config import ModelConfig
from penstock_kernels.cpu.decoder_step import NOTHING_GIVEN, GivenRows
from penstock_kernels.cpu.program import Phase, PhaseKind
from penstock_worker.media.interface import BatchMedia


def taken(config: ModelConfig) -> Iterator[Phase]:
    """Phases after the embedding that put rows in the place of placeholders."""
    if config.takes_media and not config.encoder_rows:
        yield Phase(kind=PhaseKind.TAKE_ROWS, width=config.hidden_size, adds=False)


def deepstack(config: ModelConfig, layer: int) -> Iterator[Phase]:
    """Phases after a layer of the first stage, which add a level of the tower's DeepStack
    (VisionSpec.deepstack_layers)."""
    width, levels = config.hidden_size, () if config.vision is None else config.vision.added_behind
    if layer in levels:
        first = width * (1 + levels.index(layer))
        yield Phase(kind=PhaseKind.TAKE_ROWS, first=first, width=width)


def given_rows(media: BatchMedia | None) -> GivenRows:
    """Returns what the kernels get of a batch's media."""
    if media is None:
        return NOTHING_GIVEN
    rows = numbers = None
    if media.embeddings is not None:
        rows, numbers = _int32(media.rows), media.embeddings.to(torch.float32).contiguous().numpy()
    return GivenRows(
        rows=rows,
        numbers=numbers,
        turns=None if media.positions is None else _int32(media.positions),
        last_seen=None if media.last_seen is None else _int32(media.last_seen),
        between=None if media.between is None else media.between.astype(np.uint8),
    )


def _int32(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.int32)
