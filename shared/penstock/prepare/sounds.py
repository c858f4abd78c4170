"""What a hub folder says about the sounds that its model takes: the settings of its feature
extractor, whose defaults are those of transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families.hearing import HARMLESS_TO_LOG_MEL, LOG_MEL_DEFAULTS
from penstock.families.media_tokens import MediaTokens
from penstock.families.vision.qwen2_5_omni import OMNI_2_5
from penstock.families.vision.qwen3_omni import OMNI
from penstock.formats.fields import Fields
from penstock.media.log_mel import HIGHEST
from penstock.model.audio_spec import AudioSpec, AudioTowerSpec, BlockTowerSpec
from penstock.model.media_facts import KindFacts
from penstock.model.sound_facts import BlockMel, LogMel

EXTRACTOR = "WhisperFeatureExtractor"
OF_BLOCKS = "Qwen3ASRFeatureExtractor"
_MAX_CHUNK = 3600
"""Seconds."""
_MAX_LEAST = 1 << 20
"""Samples."""


def read_sounds(
    values: dict[str, Any], where: str, config: Fields, audio: AudioSpec, tokens: MediaTokens
) -> KindFacts:
    """values: of the feature extractor.  config: config.json.  Raises UnsupportedModel."""
    reader = _READERS[_class_of(config)]
    kind = str(values.get("feature_extractor_type", EXTRACTOR))
    if kind not in reader.extractors:
        raise UnsupportedModel(
            f"{where}: feature_extractor_type is {kind[:80]!r}; known is "
            f"{' or '.join(reader.extractors)}"
        )
    bins = {"feature_size": 128} if kind == OF_BLOCKS else {}
    shown = of_pictures(values)
    own = {key: value for key, value in values.items() if key not in shown}
    settings = Fields(own, where).completed(**LOG_MEL_DEFAULTS | bins)
    mel = reader.read(settings, audio)
    check_known(settings, HARMLESS_TO_LOG_MEL)
    return reader.place(mel, tokens)


def of_pictures(values: dict[str, Any]) -> tuple[str, ...]:
    """Settings of pictures in a file that is about both."""
    if "image_processor_type" not in values:
        return ()
    own = ("image_", "do_", "size", "crop_size", "resample", "rescale_factor", "default_to_square")
    also = ("data_format", "device", "disable_grouping", "input_data_format", "return_tensors")
    patches = ("max_pixels", "merge_size", "min_pixels", "patch_size", "temporal_patch_size")
    return tuple(key for key in values if key.startswith((*own, *also, *patches)))


def check_known(settings: Fields, harmless: tuple[str, ...]) -> None:
    """Raises UnsupportedModel for a setting that wasn't read, unless it is a harmless one."""
    settings.ignore(*harmless)
    unknown = settings.not_asked()
    if unknown:
        raise UnsupportedModel(
            f"{settings.where}: {unknown[0]} is not known here, and could change what the model "
            "hears (--language-model-only serves the model without its ears)"
        )


def _windows(settings: Fields, audio: AudioSpec) -> dict[str, int]:
    """What every spectrogram has, by the names of LogMel."""
    rate = _size(settings, "sampling_rate", 384_000)
    if rate < 2 * HIGHEST:
        raise settings.wrong("sampling_rate", f"{2 * HIGHEST:g} at least")
    for key in ("padding_value", "dither"):
        if settings.number(key, 0.0) != 0.0:
            raise settings.wrong(key, "0")
    if settings.flag("do_normalize", False):
        raise settings.wrong("do_normalize", "false")
    bins = _size(settings, "feature_size", 1024)
    if bins != audio.tower.mel_bins:
        raise settings.wrong("feature_size", f"{audio.tower.mel_bins}, the tower's num_mel_bins,")
    return {
        "sampling_rate": rate,
        "bins": bins,
        "n_fft": _size(settings, "n_fft", 65_536),
        "hop": _size(settings, "hop_length", 65_536),
        "seconds": _size(settings, "chunk_length", _MAX_CHUNK),
    }


def _omni_mel(settings: Fields, audio: AudioSpec) -> BlockMel:
    """Whisper's extractor, which doesn't fill up short sounds: a window must lie in one."""
    return _block_mel(settings.completed(min_length=settings.integer("n_fft")), audio)


def _block_mel(settings: Fields, audio: AudioSpec) -> BlockMel:
    tower = audio.tower
    if not isinstance(tower, BlockTowerSpec):
        raise TypeError(f"{tower} takes no blocks")
    least = settings.integer("min_length", 8000)
    if not 1 <= least <= _MAX_LEAST:
        raise settings.wrong("min_length", f"1 to {_MAX_LEAST} samples")
    if settings.integer("n_window", tower.block // 2) != tower.block // 2:
        raise settings.wrong("n_window", f"{tower.block // 2}, the tower's,")
    mel = BlockMel(block=tower.block, least=least, **_windows(settings, audio))
    if mel.sampling_rate % mel.hop or least < max(mel.hop, mel.n_fft):
        raise settings.wrong(
            "hop_length", "a divisor of sampling_rate, up to min_length as n_fft is,"
        )
    return mel


def _log_mel(settings: Fields, audio: AudioSpec) -> LogMel:
    mel = LogMel(
        **_windows(settings, audio),
        row_frames=audio.row_frames,
        many=audio.projector is not None and not audio.cut,
        cut=audio.cut,
        exact=isinstance(audio.tower, AudioTowerSpec) and audio.tower.block > 0,
    )
    tower, hop = audio.tower, mel.hop
    if not isinstance(tower, AudioTowerSpec):
        raise TypeError(f"{tower} takes no chunks")
    if mel.exact:
        return mel
    if mel.chunk_samples % hop or mel.chunk_frames != tower.chunk_frames:
        raise settings.wrong(
            "chunk_length", f"what the tower has ({tower.chunk_frames} windows of {hop} samples)"
        )
    return mel


def _size(settings: Fields, key: str, most: int) -> int:
    value = settings.integer(key)
    if not 1 <= value <= most:
        raise settings.wrong(key, f"1 to {most}")
    return value


def _class_of(config: Fields) -> str:
    names = config.listed("architectures", str)
    return next(name for name in names if name in _READERS)


def _of_whisper(mel: LogMel | BlockMel, tokens: MediaTokens) -> KindFacts:
    """A sound stands before every prompt, in places that no token of a template marks."""
    return KindFacts.marked(mel, tokens.named("decoder_start_token_id"), placeholder="")


def _by_token(mel: LogMel | BlockMel, tokens: MediaTokens) -> KindFacts:
    return KindFacts.marked(mel, tokens.named("audio_token_index", "audio_token_id"))


@dataclass(frozen=True)
class _Reader:
    """How a class of models takes sounds. extractors: classes of feature extractors that a folder
    may name.  place: where sounds stand in a prompt."""

    extractors: tuple[str, ...]
    read: Callable[[Fields, AudioSpec], LogMel | BlockMel]
    place: Callable[[LogMel | BlockMel, MediaTokens], KindFacts]


_READERS: dict[str, _Reader] = {
    "WhisperForConditionalGeneration": _Reader((EXTRACTOR,), _log_mel, _of_whisper),
    "Qwen2AudioForConditionalGeneration": _Reader((EXTRACTOR,), _log_mel, _by_token),
    "VoxtralForConditionalGeneration": _Reader((EXTRACTOR,), _log_mel, _by_token),
    **{name: _Reader((EXTRACTOR,), _log_mel, _by_token) for name in OMNI_2_5},
    # The makers' own folders name Whisper's.
    **{name: _Reader((EXTRACTOR,), _omni_mel, _by_token) for name in OMNI},
    "Qwen3ASRForConditionalGeneration": _Reader((OF_BLOCKS, EXTRACTOR), _block_mel, _by_token),
}
"""Readers by config.json's architecture."""
