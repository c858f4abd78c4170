"""LightOnOCR: Pixtral's tower, a product that merges squares of patches as in Mistral Small 3.1,
and Qwen 3.

Source: LightOn, "LightOnOCR", 2025.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.media_tokens import MediaTokens
from penstock.families.qwen3 import QWEN3
from penstock.families.tower_names import under
from penstock.families.vision.image_processor import ImageSettings
from penstock.families.vision.pixtral import IN_PIXTRAL, IN_PROJECTOR, in_rows, pixtral_tower
from penstock.families.vision.reading import MAX_SIDE, TextHalf, VisionFamily, bounded
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import SquareMLPProjector
from penstock.model.tower_spec import VisionSpec

QWEN3_DEFAULTS: dict[str, object] = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
}
"""Defaults of transformers' Qwen3Config. Embedding and head are tied, unless config.json says
otherwise."""


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    # The first release was saved as a variant of Mistral Small 3.1, with its settings.
    hub.only(
        fields,
        multimodal_projector_bias=False,
        projector_hidden_act="gelu",
        vision_feature_layer=-1,
    )
    kind = section.text("model_type", "pixtral")
    if kind != "pixtral":
        raise UnsupportedModel(
            f"{section.where}: model_type {kind[:80]!r} is not served behind this projector; "
            "pixtral is"
        )
    return VisionSpec(
        tower=pixtral_tower(section, -1),
        projector=SquareMLPProjector(
            factor=bounded(fields, "spatial_merge_size", MAX_SIDE, 2),
            norm=NormSpec(kind="rms", eps=text.norm.eps),
            bias=False,
            merged=True,
        ),
    )


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """No token stands between rows. A release's pictures are in whole squares of patches, whatever
    patch_size says, as its own processor had them; transformers 5.17 goes by patch_size."""
    return in_rows(settings, config, tokens, merge=2, row_end="", end="")


LIGHTON_OCR = VisionFamily(
    "lighton_ocr",
    ("LightOnOcrForConditionalGeneration", "LightOnOCRForConditionalGeneration"),
    "LightOnOCR",
    {"qwen3": TextHalf(QWEN3, QWEN3_DEFAULTS)},
    _read,
    usual="qwen3",
    pictures=pictures,
    hub_names=under("vision_encoder", IN_PIXTRAL)
    | under("vision_projection", IN_PROJECTOR, "projector"),
)
