"""How pictures and sounds are prepared for Phi-4-multimodal, by transformers' files and the
makers', which have one file of settings for both; and pictures for Phi-3-vision."""

from __future__ import annotations

from typing import Any

from penstock.families import hub_reading as hub
from penstock.families.media_tokens import MediaTokens
from penstock.families.vision.phi4_multimodal import AUDIO_TOKEN, SOUND_DEFAULTS, SOUNDS
from penstock.formats.fields import Fields
from penstock.model.audio_spec import AudioSpec
from penstock.model.media_facts import KindFacts
from penstock.model.sound_facts import MAX_RATE, HammingMel
from penstock.prepare.sound_readers import MAX_FRAME
from penstock.prepare.sounds import check_known, of_pictures

PHI4 = ("Phi4MultimodalFeatureExtractor", "Phi4MMAudioFeatureExtractor")
"""Classes of feature extractors: transformers' and the makers'."""


_HARMLESS = (
    "audio_processor_type",
    "auto_map",
    "dynamic_hd",  # of pictures
    "feature_extractor_type",
    "image_processor_type",
    "mel_filters",  # follow from the other settings
    "padding_side",
    "patch_size",
    "processor_class",
    "return_attention_mask",
)


def phi4_sounds(
    values: dict[str, Any], where: str, audio: AudioSpec, tokens: MediaTokens
) -> KindFacts:
    """values: of the feature extractor, in the makers' folder with the settings of pictures among
    them. Raises UnsupportedModel."""
    stated = {key: value for key, value in values.items() if value is not None}
    settings, reduced = Fields({**SOUND_DEFAULTS, **stated}, where), audio.row_frames
    hub.only(settings, audio_compression_rate=reduced, compression_rate=reduced, padding_value=0.0)
    hub.only(settings, audio_downsample_rate=1, audio_feat_stride=1, feat_stride=1)
    rate, frame = settings.integer("sampling_rate"), settings.integer("win_length")
    n_fft, hop = settings.integer("n_fft"), settings.integer("hop_length")
    if not 2 <= frame <= n_fft <= MAX_FRAME or n_fft % 2 or not 1 <= hop <= MAX_FRAME:
        raise settings.wrong("n_fft", f"an even number up to {MAX_FRAME}, no less than win_length,")
    lowest = settings.number("mel_min_frequency")
    highest = settings.number("mel_max_frequency")
    if not 1 <= rate <= MAX_RATE or not 0 <= lowest < highest <= rate / 2:
        raise settings.wrong(
            "mel_max_frequency", "more than mel_min_frequency, and half of sampling_rate at most,"
        )
    emphasis = settings.number("preemphasis")
    if not 0 <= emphasis <= 1:
        raise settings.wrong("preemphasis", "a share, 0 to 1")
    bins = settings.integer("feature_size")
    if bins != audio.tower.mel_bins:
        raise settings.wrong("feature_size", f"{audio.tower.mel_bins}, what the tower hears,")
    check_known(settings, (*_HARMLESS, *of_pictures(values)))
    mel = HammingMel(
        sampling_rate=rate,
        bins=bins,
        lowest=lowest,
        highest=highest,
        frame=frame,
        hop=hop,
        n_fft=n_fft,
        emphasis=emphasis,
        reduced=reduced,
    )
    return KindFacts.marked(
        mel, tokens.within("audio_config", "audio_token_id", AUDIO_TOKEN), counted=SOUNDS
    )
