"""The media of a model, planned before its weights are read."""

from __future__ import annotations

from typing import Any

from penstock.errors import StartupError
from penstock.model.config import EncoderConfig, ModelConfig
from penstock.model.prepared_model import PreparedModel
from penstock.process import logs
from penstock.protocol.to_worker import Setup
from penstock_worker.media.encoder import MediaEncodings
from penstock_worker.media.memory import load_bytes, media_rows

log = logs.get(__name__)


def check_media(prepared: PreparedModel, setup: Setup) -> None:
    """Raises StartupError where prompts have to begin with an item and none can be taken, or none
    fits."""
    config = prepared.decoder
    if config.encoder_rows and (prepared.media is None or not config.takes_media):
        raise StartupError(
            f"{prepared.name} is an encoder-decoder model, and its prepared folder doesn't say how"
            " sounds are prepared: prepare it again from a folder with preprocessor_config.json"
        )
    prepared.check_encoder_cache(setup.encoder_cache_rows)


def media_of(
    prepared: PreparedModel, setup: Setup, itemsize: int, joins_spans: bool = True
) -> MediaEncodings | None:
    """Returns None for a model that takes no media. itemsize: bytes of a number that its tower
    gives. joins_spans: see MediaEncodings."""
    config = prepared.config
    if not config.takes_media:
        return None
    if prepared.media is None:
        log.warning("the model takes no media: its files don't say how they are prepared")
        return None
    rows = media_rows(config, setup.max_model_len, itemsize, setup.encoder_cache_rows)
    return MediaEncodings(
        rows=rows,
        row_bytes=config.media_width * itemsize,
        load_bytes=load_bytes(config, setup.max_model_len, setup.media_load_bytes),
        sections=isinstance(config, ModelConfig) and any(rope.sections for rope in config.ropes),
        whole_spans=config.vision is not None and config.vision.spans_whole,
        joins_spans=joins_spans,
        stand_in=stand_in_of(config),
        apart=isinstance(config, ModelConfig) and config.pictures_apart,
    )


def stand_in_of(config: ModelConfig | EncoderConfig) -> int | None:
    """MediaEncodings.stand_in."""
    own = config.per_layer_inputs if isinstance(config, ModelConfig) else None
    return None if own is None else own.media_id


def told_of(media: MediaEncodings | None) -> dict[str, Any]:
    """Fields of Ready."""
    if media is None:
        return {}
    return {
        "media_rows": media.rows,
        "whole_spans": media.whole_spans,
        "media_bytes": media.load_bytes,
    }
