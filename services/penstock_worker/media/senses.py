"""What a model encodes media with: a tower that sees, or one that hears."""

from __future__ import annotations

from collections.abc import Callable

import torch

from penstock.errors import UnsupportedModel
from penstock.model.config import PreparedModel
from penstock_worker.audio.hearing import Hearing
from penstock_worker.audio.model import AudioModel, open_audio_tower
from penstock_worker.media.interface import Sees
from penstock_worker.vision.sight import Sight, load_tower
from penstock_worker.weights.placing import CPU

Senses = Callable[[Callable[[], None]], Sees]
"""Given what is called after each of a tower's layers."""


def load_senses(
    prepared: PreparedModel,
    dtype: torch.dtype,
    load_format: str,
    device: torch.device = CPU,
    threads: int = 1,
) -> Senses:
    """Reads the tower's weights. Raises UnsupportedModel for those that don't fit, and for a model
    whose files don't say how its media are prepared."""
    config, media = prepared.config, prepared.media
    if media is None:
        raise UnsupportedModel("the model's files don't say how media are prepared")
    if config.audio is not None:
        weights = open_audio_tower(prepared.weights, dtype, device=device, load_format=load_format)
        hears = AudioModel(prepared.decoder, weights, threads)
        return lambda layer_done: Hearing(hears, layer_done)
    sees = load_tower(prepared, dtype, load_format, device, threads)
    preparation, video = media.kinds["image"].preparation, media.kinds.get("video")
    frames = None if video is None else video.preparation
    return lambda layer_done: Sight(sees, preparation, layer_done, frames)
