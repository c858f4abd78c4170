"""What a hub folder says about the sounds that its model takes: the settings of transformers'
WhisperFeatureExtractor, with its defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.media.log_mel import HIGHEST
from penstock.model.audio_spec import AudioSpec
from penstock.model.media_facts import KindFacts, LogMel
from penstock.prepare.media_tokens import MediaTokens

EXTRACTOR = "WhisperFeatureExtractor"
_DEFAULTS: dict[str, Any] = {
    "feature_size": 80,
    "sampling_rate": 16_000,
    "hop_length": 160,
    "chunk_length": 30,
    "n_fft": 400,
}
_HARMLESS = (
    "feature_extractor_type",
    "mel_filters",  # follow from the other settings
    "n_samples",
    "nb_max_frames",
    "padding_side",
    "processor_class",
    "return_attention_mask",
)
_MAX_CHUNK = 3600
"""Seconds."""


def read_sounds(
    values: dict[str, Any], where: str, config: Fields, audio: AudioSpec, tokens: MediaTokens
) -> KindFacts:
    """values: of the feature extractor.  config: config.json.  Raises UnsupportedModel."""
    if values.get("feature_extractor_type", EXTRACTOR) != EXTRACTOR:
        kind = str(values["feature_extractor_type"])[:80]
        raise UnsupportedModel(f"{where}: feature_extractor_type is {kind!r}; known is {EXTRACTOR}")
    settings = Fields(values, where).completed(**_DEFAULTS)
    mel = _log_mel(settings, audio)
    settings.ignore(*_HARMLESS)
    unknown = settings.not_asked()
    if unknown:
        raise UnsupportedModel(
            f"{where}: {unknown[0]} is not known here, and could change what the model hears "
            "(--language-model-only serves the model without its ears)"
        )
    return _PLACES[_class_of(config)](mel, tokens)


def _log_mel(settings: Fields, audio: AudioSpec) -> LogMel:
    rate, hop = _size(settings, "sampling_rate", 384_000), _size(settings, "hop_length", 65_536)
    if rate < 2 * HIGHEST:
        raise settings.wrong("sampling_rate", f"{2 * HIGHEST:g} at least")
    for key in ("padding_value", "dither"):
        if settings.number(key, 0.0) != 0.0:
            raise settings.wrong(key, "0")
    if settings.flag("do_normalize", False):
        raise settings.wrong("do_normalize", "false")
    mel = LogMel(
        sampling_rate=rate,
        bins=_size(settings, "feature_size", 1024),
        n_fft=_size(settings, "n_fft", 65_536),
        hop=hop,
        seconds=_size(settings, "chunk_length", _MAX_CHUNK),
        row_frames=audio.row_frames,
        many=audio.projector is not None and not audio.cut,
        cut=audio.cut,
    )
    tower = audio.tower
    if mel.bins != tower.mel_bins:
        raise settings.wrong("feature_size", f"{tower.mel_bins}, the tower's num_mel_bins,")
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
    return next(name for name in names if name in _PLACES)


def _of_whisper(mel: LogMel, tokens: MediaTokens) -> KindFacts:
    """A sound stands before every prompt, in places that no token of a template marks."""
    token, token_id = tokens.named("decoder_start_token_id")
    return KindFacts(preparation=mel, placeholder="", token=token, token_id=token_id)


def _by_token(mel: LogMel, tokens: MediaTokens) -> KindFacts:
    token, token_id = tokens.named("audio_token_index", "audio_token_id")
    return KindFacts(preparation=mel, placeholder=token, token=token, token_id=token_id)


_PLACES: dict[str, Callable[[LogMel, MediaTokens], KindFacts]] = {
    "WhisperForConditionalGeneration": _of_whisper,
    "Qwen2AudioForConditionalGeneration": _by_token,
    "VoxtralForConditionalGeneration": _by_token,
}
"""config.json's architecture -> where its sounds stand in a prompt."""
