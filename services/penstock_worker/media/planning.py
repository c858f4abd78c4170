"""The media of a model, planned before its weights are read."""

from __future__ import annotations

import torch

from penstock import logs
from penstock.model_config import PreparedModel
from penstock.protocol.to_worker import Setup
from penstock_worker.media.encoder import MediaEncodings
from penstock_worker.media.memory import load_bytes, media_rows

log = logs.get(__name__)

TEXT_TOO = (
    "text is computed by a backend that takes pictures too; where nobody brings any,"
    " --language-model-only may be faster"
)


def media_of(prepared: PreparedModel, setup: Setup, dtype: torch.dtype) -> MediaEncodings | None:
    """Returns None for a model that takes no media."""
    config = prepared.decoder
    if not config.takes_media:
        return None
    if prepared.media is None:
        log.warning("the model takes no media: its files don't say how they are prepared")
        return None
    rows = media_rows(config, setup.max_model_len, setup.encoder_cache_rows)
    return MediaEncodings(
        rows=rows,
        row_bytes=config.hidden_size * dtype.itemsize,
        load_bytes=load_bytes(config, setup.max_model_len, setup.media_load_bytes),
        sections=any(rope.sections for rope in config.ropes),
        whole_spans=config.vision is not None and config.vision.spans_whole,
    )
