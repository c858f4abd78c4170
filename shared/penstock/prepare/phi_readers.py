"""How pictures and sounds are prepared for Phi-4-multimodal, by transformers' files and the
makers', which have one file of settings for both; and pictures for Phi-3-vision."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.families import hub_reading as hub
from penstock.formats.fields import Fields
from penstock.forms.sheets import BarredImages, SheetImages
from penstock.model.audio_spec import AudioSpec
from penstock.model.media_facts import KindFacts
from penstock.model.sound_facts import HammingMel
from penstock.prepare.image_processor import ImageSettings, pixels_of
from penstock.prepare.media_tokens import MediaTokens
from penstock.prepare.picture_readers import MAX_TILES
from penstock.prepare.sound_readers import MAX_FRAME, MAX_RATE
from penstock.prepare.sounds import check_known, of_pictures

IMAGE_TOKEN, AUDIO_TOKEN = 200_010, 200_011
"""Ids of the tokens that stand for pictures and for sounds, where config.json doesn't say."""
PICTURES, SOUNDS = ("<|image_", "|>"), ("<|audio_", "|>")
"""What the makers' processors have around an item's number, in a prompt's text."""
PHI3_TOKEN = "<|image|>"
"""What stands for a picture, in the tokenizer of Phi-3-vision."""
PHI4 = ("Phi4MultimodalFeatureExtractor", "Phi4MMAudioFeatureExtractor")
"""Classes of feature extractors: transformers' and the makers'."""
_DEFAULTS: dict[str, Any] = {
    "feature_size": 80,
    "sampling_rate": 16_000,
    "hop_length": 160,
    "n_fft": 512,
    "win_length": 400,
    "preemphasis": 0.97,
    "mel_min_frequency": 0.0,
    "mel_max_frequency": 7690.0,
}
"""transformers' extractor's, which are constants of the makers' code."""
OF_SOUNDS = (
    *_DEFAULTS,
    "audio_compression_rate",
    "audio_downsample_rate",
    "audio_feat_stride",
    "compression_rate",
    "feat_stride",
    "padding_side",
    "padding_value",
    "return_attention_mask",
)
"""Settings of sounds in a file about both."""
BILINEAR, BICUBIC = 2, 3
"""Pillow's numbers of filters."""


def phi4_pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """`resample` is the filter by which a whole sheet is made smaller; what lies on it is resized
    by another one, which no file says."""
    settings.ignore(*OF_SOUNDS)
    vision = config.section("vision_config").completed(image_size=448, patch_size=14)
    tile, patch = vision.integer("image_size"), vision.integer("patch_size")
    if settings.side("size") != (tile, tile):
        raise settings.wrong("size", f"what the vision tower has ({tile})")
    hub.only(settings, patch_size=patch, resample=BICUBIC)
    most = settings.integer("dynamic_hd")
    if not 1 <= most <= MAX_TILES:
        raise settings.wrong("dynamic_hd", f"1 to {MAX_TILES} tiles")
    pixels = msgspec.structs.replace(pixels_of(settings), resample=BILINEAR)
    image = SheetImages(pixels=pixels, tile=tile, patch=patch, most=most)
    token, token_id = tokens.within("vision_config", "image_token_id", IMAGE_TOKEN)
    return KindFacts(
        preparation=image, placeholder=token, token=token, token_id=token_id, counted=PICTURES
    )


def phi3_pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """The makers' processor tokenises what stands between pictures by itself, each part with BOS in
    front, so that BOS follows every picture. A tile's size is a constant of their code."""
    vision = config.section("vision_config").completed(image_size=336, patch_size=14)
    tile, patch = vision.integer("image_size"), vision.integer("patch_size")
    if not 1 <= patch <= tile:
        raise vision.wrong("patch_size", f"1 to {tile} pixels")
    most = settings.integer("num_crops")
    if not 1 <= most <= MAX_TILES:
        raise settings.wrong("num_crops", f"1 to {MAX_TILES} tiles")
    image = BarredImages(pixels=pixels_of(settings), tile=tile, patch=patch, most=most)
    hub.only(settings, num_img_tokens=(tile // patch // image.merge) ** 2)
    token, token_id = tokens.called(PHI3_TOKEN)
    begin, _ = tokens.named("bos_token_id")
    return KindFacts(
        preparation=image,
        placeholder=token,
        token=token,
        token_id=token_id,
        behind=begin,
        counted=PICTURES,
    )


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
    settings, reduced = Fields({**_DEFAULTS, **stated}, where), audio.row_frames
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
    token, token_id = tokens.within("audio_config", "audio_token_id", AUDIO_TOKEN)
    return KindFacts(
        preparation=mel, placeholder=token, token=token, token_id=token_id, counted=SOUNDS
    )
