"""What a model encodes media with: a tower that sees, or one that hears."""

from __future__ import annotations

from collections.abc import Callable

import torch

from penstock.errors import UnsupportedModel
from penstock.model_config import PreparedModel
from penstock_worker.audio.hearing import Hearing
from penstock_worker.audio.model import AudioModel, open_audio_tower
from penstock_worker.media.interface import Sees
from penstock_worker.vision.sight import Sight, load_tower

Senses = Callable[[Callable[[], None]], Sees]
"""Given what is called after each of a tower's layers."""


def load_senses(prepared: PreparedModel, dtype: torch.dtype, load_format: str) -> Senses:
    """Reads the tower's weights. Raises UnsupportedModel for those that don't fit, and for a model
    whose files don't say how its media are prepared."""
    config, media = prepared.decoder, prepared.media
    if media is None:
        raise UnsupportedModel("the model's files don't say how media are prepared")
    if config.audio is not None:
        weights = open_audio_tower(prepared.weights, dtype, load_format=load_format)
        hears = AudioModel(config, weights)
        return lambda layer_done: Hearing(hears, layer_done)
    sees, preparation = load_tower(prepared, dtype, load_format), media.kinds["image"].preparation
    return lambda layer_done: Sight(sees, preparation, layer_done)
