"""What media take of memory: rows of encodings, and prepared items that wait to be encoded."""

from __future__ import annotations

from penstock.model.audio_spec import AudioSpec
from penstock.model.config import EncoderConfig, ModelConfig
from penstock.model.tower_spec import VisionSpec
from penstock.protocol.media import MAX_MEDIA_ITEMS, MEDIA_OVERHEAD

USUAL_ROWS = 16_384
"""Rows of encodings that are kept: as many as the largest picture has that any of the families
takes."""

USUAL_BYTES = 256 << 20
"""The bytes that these rows may take, unless one prompt can need more."""


def media_rows(
    config: ModelConfig | EncoderConfig,
    max_model_len: int,
    number_bytes: int,
    wanted: int | None = None,
) -> int:
    """How many rows of encodings are kept. number_bytes: of a number in them.  wanted: what a
    setting says.

    They are those of many requests: those that wait show the same pictures as those that run, and
    one whose rows had to go is encoded again.
    """
    if not config.takes_media:
        return 0
    if wanted:
        return wanted
    if config.encoder_rows:
        return _rows_of_several(config)
    affordable = USUAL_BYTES // (config.media_width * number_bytes)
    return min(USUAL_ROWS, max(max_model_len, affordable))


def _rows_of_several(config: ModelConfig | EncoderConfig) -> int:
    """Rows of encodings for several items. All prompts of an encoder-decoder model begin with an
    item, however short they are."""
    return max(config.encoder_rows, USUAL_ROWS)


def load_bytes(config: ModelConfig | EncoderConfig, max_model_len: int, wanted: int = 0) -> int:
    """Bytes of prepared items that the engine core may have wait at a time: those of the longest
    prompt, but no more than `wanted`, what a setting says; 0: it says nothing."""
    each = max(
        0 if config.vision is None else pixel_bytes(config.vision),
        0 if config.audio is None else sound_bytes(config.audio),
    )
    if not each:
        return 0
    rows = _rows_of_several(config) if config.encoder_rows else max_model_len
    longest = rows * each + MAX_MEDIA_ITEMS * MEDIA_OVERHEAD
    return min(longest, wanted or longest)


def held_bytes(load: int) -> int:
    """Bytes of prepared items that are held at most, where `load` may wait. An item that a sequence
    which runs has come to, and that had gone, comes in any case; it has no more than one's."""
    return 2 * load


def pixel_bytes(spec: VisionSpec) -> int:
    """Returns the bytes of a prepared item for each of its rows: the patches that a row is made of,
    a byte for each pixel's colour, of all frames of a video that a patch spans."""
    tower = spec.tower
    return spec.patches_in_row * tower.channels * tower.frames * tower.patch**2


def sound_bytes(spec: AudioSpec) -> int:
    """Returns the bytes of a prepared sound for each of its rows: float32 for each band of its
    windows."""
    return 4 * spec.tower.mel_bins * spec.row_frames
