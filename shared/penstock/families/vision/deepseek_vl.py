"""DeepSeek-VL 1.3B: a SigLIP tower, two products, and Llama.

Source: DeepSeek-AI, "DeepSeek-VL: towards real-world vision-language understanding", 2024; keys and
defaults: transformers' DeepseekVLConfig.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families.llama import LLAMA
from penstock.families.vision.llava import LLAMA_DEFAULTS
from penstock.families.vision.reading import TextHalf, VisionFamily, siglip_tower
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
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


DEEPSEEK_VL = VisionFamily(
    "deepseek_vl",
    ("DeepseekVLForConditionalGeneration",),
    "DeepSeek-VL 1.3B",
    {"llama": TextHalf(LLAMA, TEXT_DEFAULTS)},
    _read,
    usual="llama",
    harmless=frozenset({"image_token_id"}),
)
