"""DeepSeek-VL 1.3B: a SigLIP tower, two products, and Llama.

Source: DeepSeek-AI, "DeepSeek-VL: towards real-world vision-language understanding", 2024; keys and
defaults: transformers' DeepseekVLConfig.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families.llama import LLAMA
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import CLIP_MODEL, under
from penstock.families.vision.image_processor import ImageSettings, pixels_of
from penstock.families.vision.llava import LLAMA_DEFAULTS
from penstock.families.vision.reading import TextHalf, VisionFamily, siglip_tower
from penstock.formats.fields import Fields
from penstock.forms.fixed import FixedImages
from penstock.model.config import ModelConfig
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import MLPProjector
from penstock.model.tower_spec import VisionSpec

TEXT_DEFAULTS: dict[str, object] = LLAMA_DEFAULTS | {"tie_word_embeddings": True}


def check_siglip(section: Fields) -> None:
    """Raises UnsupportedModel for another tower."""
    kind = section.text("model_type", "siglip_vision_model")
    if kind != "siglip_vision_model":
        raise UnsupportedModel(
            f"{section.where}: model_type {kind[:80]!r} is not served; siglip_vision_model is"
        )


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    check_siglip(section)
    tower, image = siglip_tower(section)
    return VisionSpec(tower=tower, projector=MLPProjector(bias=True), image_size=image)


SMALLEST_SIDE = 14
"""Pixels that a side has at least, where settings don't say."""
OF_MEAN = ("background_color", "high_res_background_color")
"""Settings that transformers writes, and makes anew of the mean."""


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    side, rows = square_of(settings, config)
    image = FixedImages(
        pixels=pixels_of(settings),
        height=side,
        width=side,
        rows=rows,
        fitted=least_of(settings, side),
    )
    return KindFacts.marked(image, tokens.named("image_token_id"))


def square_of(settings: ImageSettings, config: Fields) -> tuple[int, int]:
    """Side of the tower's pictures, pixels, and their embeddings."""
    settings.ignore(*OF_MEAN)
    vision = config.section("vision_config")
    height, width = settings.side("size")
    side, patch = vision.integer("image_size", height), vision.integer("patch_size", 16)
    if not (height == width == side) or not 1 <= patch <= side:
        raise settings.wrong("size", f"a square of what the vision tower has ({side})")
    if not settings.flag("do_pad", True):
        raise settings.wrong("do_pad", "true")
    return side, (side // patch) ** 2


def least_of(settings: ImageSettings, side: int) -> int:
    least = settings.integer("min_size")
    if not 1 <= least <= side:
        raise settings.wrong("min_size", f"1 to {side} pixels")
    return least


DEEPSEEK_VL = VisionFamily(
    "deepseek_vl",
    ("DeepseekVLForConditionalGeneration",),
    "DeepSeek-VL 1.3B",
    {"llama": TextHalf(LLAMA, TEXT_DEFAULTS)},
    _read,
    usual="llama",
    pictures=pictures,
    hub_names=CLIP_MODEL | under("aligner", {"linear1": "1", "linear2": "2"}, "projector"),
)
