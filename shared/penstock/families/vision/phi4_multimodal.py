"""Phi-4-multimodal's decoder and its vision tower: a SigLIP tower over a sheet's tiles, the layer
before its last, lines of means of squares of patches, and Phi-3's decoder. Its audio tower is in
`penstock_families/phi4_multimodal_audio.py`.

The makers' own config.json says less than transformers': the tower's sizes are constants of their
code. Their checkpoint has two adapters of the decoder's among its weights, for pictures and for
sounds, and again in folders of their own, from which they are served.

Source: Microsoft, "Phi-4-mini technical report", 2025.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.family import TextHalf
from penstock.families.llama_relatives import PHI3
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import CLIP, TowerNames, under
from penstock.families.vision.image_processor import ImageSettings, pixels_of
from penstock.families.vision.pictures import MAX_TILES
from penstock.families.vision.reading import VisionFamily, siglip_tower
from penstock.formats.fields import Fields
from penstock.forms.sheets import SheetImages
from penstock.model.config import ModelConfig
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import SheetProjector
from penstock.model.tower_spec import VisionSpec
from penstock.process import logs

log = logs.get(__name__)

CLASSES = ("Phi4MultimodalForCausalLM", "Phi4MMForCausalLM")
"""transformers' and the makers'."""
TEXT_DEFAULTS: dict[str, object] = {
    "vocab_size": 200_064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}
"""Defaults of transformers' Phi4MultimodalConfig."""
TOWER_DEFAULTS: dict[str, object] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 448,
    "patch_size": 14,
    "crop_size": 448,
    "feature_layer": -2,
}
"""The settings of its Phi4MultimodalVisionConfig, which are the constants of the makers' code."""
OF_MAKERS: dict[str, object] = {
    "crop_size": 448,
    "hd_transform_order": "sub_glb",
    "image_token_compression_cls": "avg_pool_2d",
    "projection_cls": "mlp",
    "use_hd_transform": True,
    "with_learnable_separator": True,
}
"""What the makers' config.json says of pictures, in the one form that their code has."""
ADAPTERS = ("vision_lora", "speech_lora")
"""Sections of config.json that say how the two adapters were trained."""
BESIDE = ("audio_config", "audio_processor", "embd_layer", "img_processor", "vision_config")
"""Keys of config.json that aren't the decoder's settings, though they are at the same level."""

HALVES = dict.fromkeys(("phi4_multimodal", "phi4mm"), TextHalf(PHI3, TEXT_DEFAULTS))
HARMLESS = frozenset((*BESIDE, *ADAPTERS))


def flat_decoder(fields: Fields) -> Fields:
    """config.json has no section about the decoder."""
    if any(key in fields for key in ADAPTERS):
        log.info(
            "the checkpoint is served without the adapters that it has for pictures and sounds, "
            "unless settings name their folders and a request's model one of them",
            config=fields.where,
            settings="--enable-lora --max-lora-rank 320 --lora-modules "
            "vision=FOLDER/vision-lora speech=FOLDER/speech-lora",
        )
    key = "num_key_value_heads"
    if key in fields.values and fields.values[key] is None:  # each head has its own
        return fields.replaced({key: fields.values.get("num_attention_heads")})
    return fields


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    if fields.section("img_processor").values:
        raise fields.wrong("img_processor", "null")
    hub.only(fields.section("embd_layer").section("image_embd_layer"), **OF_MAKERS)
    section = section.completed(**TOWER_DEFAULTS)
    tower, image = siglip_tower(section, section.integer("feature_layer"), fractional=True)
    factor = SheetProjector().factor
    if image % tower.patch or image // tower.patch % factor:
        raise UnsupportedModel(
            f"{section.where}: image_size {image} and patch_size {tower.patch} are not served; a "
            f"multiple of {factor} patches in a row of a tile is needed, and no pixel left over"
        )
    hub.only(section, crop_size=image)
    section.ignore("image_token_id")  # read with the pictures' preparation
    return VisionSpec(tower=tower, projector=SheetProjector(), image_size=image)


IMAGE_TOKEN, AUDIO_TOKEN = 200_010, 200_011
"""Ids of the tokens that stand for pictures and for sounds, where config.json doesn't say."""
PICTURES, SOUNDS = ("<|image_", "|>"), ("<|audio_", "|>")
"""What the makers' processors have around an item's number, in a prompt's text."""
SOUND_DEFAULTS: dict[str, Any] = {
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
    *SOUND_DEFAULTS,
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


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
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
    return KindFacts.marked(
        image, tokens.within("vision_config", "image_token_id", IMAGE_TOKEN), counted=PICTURES
    )


SHEET: TowerNames = {
    "sub_img_feature_extensor": "projector.newline",
    "sub_GN": "projector.newline",
    "global_img_feature_extensor": "projector.between",
    "glb_GN": "projector.between",
    "img_projection_up": "projector.1",
    "img_projection_down": "projector.2",
    "img_projection.0": "projector.1",
    "img_projection.2": "projector.2",
}
"""Names of the tensors after the tower, transformers' and the original ones."""

PHI4_MULTIMODAL = VisionFamily(
    "phi4_multimodal",
    CLASSES,
    "Phi-4-multimodal",
    HALVES,
    _read,
    usual="phi4_multimodal",
    flat=flat_decoder,
    harmless=HARMLESS,
    ignored=tuple(HARMLESS),
    pictures=pictures,
    hub_names=under("embed_tokens_extend.image_embed", SHEET | under("img_processor", CLIP)),
)
