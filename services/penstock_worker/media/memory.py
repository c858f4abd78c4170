"""What media take of memory: rows of encodings, and prepared items that wait to be encoded."""

from __future__ import annotations

from penstock.audio_spec import AudioSpec
from penstock.model_config import ModelConfig
from penstock.protocol.common import MAX_MEDIA_ITEMS, MEDIA_OVERHEAD
from penstock.vision_spec import VisionSpec

USUAL_ROWS = 16_384
"""Of encodings that are kept, if prompts may be longer: as many as the largest picture has that any
of the families takes."""


def media_rows(config: ModelConfig, max_model_len: int, wanted: int | None = None) -> int:
    """How many rows of encodings are kept; wanted: what a setting says."""
    if not config.takes_media:
        return 0
    # All prompts of an encoder-decoder model begin with an item, however short they are.
    usual = max(config.encoder_rows, USUAL_ROWS)
    return wanted or (usual if config.encoder_rows else min(max_model_len, usual))


def load_bytes(config: ModelConfig, max_model_len: int, wanted: int = 0) -> int:
    """Bytes of prepared items that the engine core may have wait at a time: those of the longest
    prompt, but no more than `wanted`, what a setting says; 0: it says nothing."""
    each = max(
        0 if config.vision is None else pixel_bytes(config.vision),
        0 if config.audio is None else sound_bytes(config.audio),
    )
    if not each:
        return 0
    rows = max_model_len
    if config.encoder_rows:
        rows = media_rows(config, max_model_len)  # of several prompts
    longest = rows * each + MAX_MEDIA_ITEMS * MEDIA_OVERHEAD
    return min(longest, wanted or longest)


def held_bytes(load: int) -> int:
    """Bytes of prepared items that are held at most, where `load` may wait. An item that a sequence
    which runs has come to, and that had gone, comes in any case; it has no more than one's."""
    return 2 * load


def pixel_bytes(spec: VisionSpec) -> int:
    """Of a prepared item for each of its rows: the patches that a row is made of, a byte for each
    pixel's colour, of all frames of a video that a patch spans."""
    tower = spec.tower
    return spec.patches_in_row * tower.channels * tower.frames * tower.patch**2


def sound_bytes(spec: AudioSpec) -> int:
    """Of a prepared sound for each of its rows: float32 for each band of its windows."""
    return 4 * spec.tower.mel_bins * spec.row_frames
