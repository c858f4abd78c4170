"""PaddleOCR-VL: a tower for pictures of any form, with a stretched table of positions and patches
that rotate by row and column, two products over squares of patches, and ERNIE 4.5's decoder, whose
tokens have positions of three numbers and whose rotary pairs are half a head apart, as Llama's.

Source: Cui et al., "PaddleOCR-VL", 2025. The table is stretched edge on edge, as in the makers'
code and vLLM's; transformers 5.17 lays it corner on corner.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.bounds import layer_count
from penstock.families.family import Family
from penstock.families.llama import LLAMA
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import CLIP, TWO, TowerNames, under
from penstock.families.vision.image_processor import ImageSettings
from penstock.families.vision.pictures import in_patches
from penstock.families.vision.qwen_vl import ABOUT_PICTURES, MAX_MERGE, with_sections
from penstock.families.vision.reading import (
    MAX_PATCH,
    MAX_PIXELS,
    MAX_WIDTH,
    VISION,
    TextHalf,
    VisionFamily,
    activation,
    bounded,
    heads,
    only_colours,
    patches_in_row,
)
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import MergerProjector
from penstock.model.tower_spec import RotaryPositions, TowerSpec, VisionSpec

SECTIONS = (16, 24, 24)
"""Pairs that rotate by frame, row and column, where config.json doesn't say."""
DEFAULTS: dict[str, object] = {
    "vocab_size": 103_424,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": True,
}
"""Defaults of transformers' PaddleOCRTextConfig."""
INERT = (
    "compression_ratio",
    "ignored_index",
    "max_sequence_length",
    "use_flash_attention",
    "weight_share_add_bias",
)
"""Settings of the decoder that nothing reads."""
PROJECTOR_NORM = NormSpec(kind="layer", eps=1e-5, bias=True)


def _flat(fields: Fields) -> Fields:
    return fields.without(VISION, "model_type", *ABOUT_PICTURES)


def _decoder(fields: Fields) -> ModelConfig:
    hub.only(fields, rope_is_neox_style=True, use_3d_rope=True)
    fields.ignore("rope_is_neox_style", "use_3d_rope")
    bias = fields.flag("use_bias", False)
    biased = fields.replaced({"attention_bias": bias, "mlp_bias": bias})
    return with_sections(biased, LLAMA, SECTIONS)


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    section = section.completed(
        hidden_size=1152,
        intermediate_size=4304,
        num_hidden_layers=27,
        num_attention_heads=16,
        patch_size=14,
        image_size=384,
    )
    section.ignore("temporal_patch_size", "tokens_per_second")  # of videos
    only_colours(section, "num_channels")
    hidden = bounded(section, "hidden_size", MAX_WIDTH)
    patch = bounded(section, "patch_size", MAX_PATCH)
    image = bounded(section, "image_size", MAX_PIXELS)
    rope = section.section("rope_parameters")
    hub.only(rope, rope_type="axial")
    tower = TowerSpec(
        hidden_size=hidden,
        intermediate_size=bounded(section, "intermediate_size", MAX_WIDTH),
        num_layers=layer_count(section, "num_hidden_layers"),
        num_heads=heads(section, "num_attention_heads", hidden),
        patch=patch,
        norm=NormSpec(kind="layer", eps=section.number("layer_norm_eps", 1e-6), bias=True),
        activation=activation(section, "gelu_pytorch_tanh"),
        patch_bias=True,
        positions=RotaryPositions(
            theta=rope.number("rope_theta", 10_000.0),
            table=patches_in_row(section, image, patch),
            by_edges=True,
        ),
        last_norm=True,
    )
    if tower.head_dim % 4:
        raise UnsupportedModel(
            f"{section.where}: heads of {tower.head_dim} numbers can't rotate by row and column; "
            "hidden_size / num_attention_heads must be a multiple of 4"
        )
    side = bounded(section, "spatial_merge_size", MAX_MERGE, 2)
    return VisionSpec(tower=tower, projector=MergerProjector(side=side, norm=PROJECTOR_NORM))


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """The makers' own class is called like SigLIP's, whose size means nothing here. A patch is of
    one frame, whatever config.json says of videos."""
    size = (384 * 384, 1536 * 1536)
    if settings.kind == "SiglipImageProcessor":
        settings.ignore("size", "do_center_crop")
    else:
        size = settings.sizes("size", *size)
    vision = config.section("vision_config").replaced({"temporal_patch_size": 1})
    return in_patches(settings, vision, tokens, size, frames=1, widened=True)


_TOWER: TowerNames = {**CLIP, "embeddings.packing_position_embedding": None}

PADDLEOCR_VL = VisionFamily(
    "paddleocr_vl",
    ("PaddleOCRVLForConditionalGeneration",),
    "PaddleOCR-VL",
    {
        "paddleocr_vl_text": TextHalf(
            Family(LLAMA.name, (), LLAMA.known_as, _decoder, hub_names=LLAMA.hub_names), DEFAULTS
        )
    },
    _read,
    usual="paddleocr_vl_text",
    flat=_flat,
    ignored=INERT,
    pictures=pictures,
    hub_names=under("visual.vision_model", _TOWER)
    | under("mlp_AR", TWO | {"pre_norm": "norm"}, "projector"),
)
