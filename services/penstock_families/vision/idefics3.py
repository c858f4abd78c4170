"""Idefics 3 and SmolVLM: a SigLIP tower over tiles of a picture, a product of squares of patches,
and Llama.

Source: Laurençon et al., "Building and better understanding vision-language models", 2024;
Marafioti et al., "SmolVLM", 2025.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families.llama import LLAMA
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import CLIP_MODEL, under
from penstock.families.vision.image_processor import ImageSettings, longest_edge, pixels_of
from penstock.families.vision.llava import LLAMA_DEFAULTS
from penstock.families.vision.pictures import bounded_rows, check_side, patch_of
from penstock.families.vision.reading import MAX_SIDE, TextHalf, VisionFamily, bounded, siglip_tower
from penstock.formats.fields import Fields
from penstock.forms.tiled import TiledImages
from penstock.model.config import ModelConfig
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import ShuffleProjector
from penstock.model.tower_spec import VisionSpec

OF_PREPARATION = ("max_image_size", "size")
"""Settings of the tower's section that say how pictures are cut."""
OF_TRAINING = (
    "_flash_attn_2_enabled",
    "is_llama_config",
    "neftune_noise_alpha",
    "perceiver_config",
    "pixel_shuffle_factor",  # said by scale_factor
    "transformers.js_config",
    "vision_config",
)
"""Settings of the decoder's section that Llama's layers don't have."""


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    section.ignore(*OF_PREPARATION)
    tower, image = siglip_tower(section, fractional=True)
    factor = bounded(fields, "scale_factor", MAX_SIDE, 2)
    if image // tower.patch % factor:
        raise UnsupportedModel(
            f"{fields.where}: scale_factor {factor} doesn't divide the {image // tower.patch} "
            "patches in a row of a picture"
        )
    return VisionSpec(tower=tower, projector=ShuffleProjector(factor=factor))


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    vision = config.section("vision_config")
    tile = longest_edge(settings, "max_image_size", 364)
    check_side(vision, tile, tile)
    side = tile // patch_of(vision) // max(config.integer("scale_factor", 2), 1)
    token = tokens.named("image_token_id")
    image = TiledImages(
        pixels=pixels_of(settings),
        longest_edge=longest_edge(settings, "size", 4 * 364),
        tile=tile,
        rows=bounded_rows(side * side, settings),
        split=settings.flag("do_image_splitting", True),
    )
    tokens.check(image.around)
    return KindFacts.marked(image, token)


IDEFICS3 = VisionFamily(
    "idefics3",
    ("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"),
    "Idefics 3, SmolVLM",
    {"llama": TextHalf(LLAMA, LLAMA_DEFAULTS | {"rms_norm_eps": 1e-6})},
    _read,
    usual="llama",
    harmless=frozenset(
        {"image_seq_len", "max_frames", "use_reentrant_checkpointing", "vocab_size"}
    ),
    ignored=OF_TRAINING,
    pictures=pictures,
    hub_names=CLIP_MODEL | under("connector", {"modality_projection.proj": ""}, "projector"),
)
