"""How pictures are prepared for Phi-4-multimodal, by transformers' files and the makers', which
have one file of settings for both kinds of media."""

from __future__ import annotations

import msgspec

from penstock.families import hub_reading as hub
from penstock.formats.fields import Fields
from penstock.model.image_facts import SheetImages
from penstock.model.media_facts import KindFacts
from penstock.prepare.image_processor import ImageSettings, pixels_of
from penstock.prepare.media_tokens import MediaTokens
from penstock.prepare.picture_readers import MAX_TILES

IMAGE_TOKEN = 200_010
"""The id of the token that stands for pictures, where config.json doesn't say."""
OF_SOUNDS = (
    "audio_compression_rate",
    "audio_downsample_rate",
    "audio_feat_stride",
    "compression_rate",
    "feat_stride",
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
    return KindFacts(preparation=image, placeholder=token, token=token, token_id=token_id)
