"""LLaVA 1.5, BakLLaVA and Pixtral 12B: a CLIP, SigLIP or Pixtral tower, two products, and Llama,
Vicuna, Mistral or Qwen 2.

Source: Liu et al., "Improved baselines with visual instruction tuning", 2023; Agrawal et al.,
"Pixtral 12B", 2024.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families.llama import LLAMA
from penstock.families.mistral import MISTRAL
from penstock.families.qwen2 import QWEN2
from penstock.families.vision.family import TextHalf, VisionFamily
from penstock.families.vision.pixtral import MISTRAL_DEFAULTS, pixtral_tower
from penstock.families.vision.reading import clip_tower, projector_activation, siglip_tower
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.vision_spec import MLPProjector, TowerSpec, VisionSpec

LLAMA_DEFAULTS: dict[str, object] = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}
"""Defaults of transformers' LlamaConfig."""
CLIP_DEFAULTS: dict[str, object] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "patch_size": 14,
    "image_size": 336,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}
"""Settings of a tower that config.json has no section about."""
SELECTED = ("default", "full")
"""Values of vision_feature_select_strategy: without the class token, and with it."""


def _tower(fields: Fields, section: Fields) -> tuple[TowerSpec, int | None]:
    """The tower, and the size of its pictures; None: they differ."""
    if not section.values:
        section = section.completed(**CLIP_DEFAULTS)
    kind = section.text("model_type", "clip_vision_model")
    selected = fields.text("vision_feature_select_strategy", "default")
    if selected not in SELECTED:
        raise fields.wrong("vision_feature_select_strategy", " or ".join(SELECTED))
    layer = fields.integer("vision_feature_layer", -2)
    match kind:
        case "clip_vision_model":
            return clip_tower(section, layer, keeps_class=selected == "full")
        case "siglip_vision_model" if selected == "full":
            return siglip_tower(section, layer)
        case "pixtral" if selected == "full":
            return pixtral_tower(section, layer), None
        case "siglip_vision_model" | "pixtral":
            raise UnsupportedModel(
                f"{fields.where}: vision_feature_select_strategy default leaves the first patch of "
                "a tower without a class token; full is served for it"
            )
    raise UnsupportedModel(
        f"{section.where}: model_type {kind[:80]!r} is not served; clip_vision_model, "
        "siglip_vision_model and pixtral are"
    )


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    tower, image = _tower(fields, section)
    return VisionSpec(
        tower=tower,
        projector=MLPProjector(
            activation=projector_activation(fields),
            bias=fields.flag("multimodal_projector_bias", True),
        ),
        image_size=image,
    )


LLAVA = VisionFamily(
    "llava",
    ("LlavaForConditionalGeneration",),
    "LLaVA 1.5, Pixtral",
    {
        "llama": TextHalf(LLAMA, LLAMA_DEFAULTS),
        "mistral": TextHalf(MISTRAL, MISTRAL_DEFAULTS),
        "qwen2": TextHalf(QWEN2),
    },
    _read,
    usual="llama",
    harmless=frozenset(
        {"image_token_index", "image_token_id", "image_seq_length", "ignore_index", "vocab_size"}
    ),
    ignored=("is_composition",),
)
