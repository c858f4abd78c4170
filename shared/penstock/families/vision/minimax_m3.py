"""MiniMax M3: CLIP's layers for pictures of any form and videos, whose patches rotate by frame, row
and column; two products over each patch and two over squares of them; and MiniMax M3's decoder.

Source: MiniMax, "MiniMax M3", 2026; the rotation as the makers' own code has it in SGLang, and as
vLLM and llama.cpp have it. transformers 5.17 reads frame and row where row and column are meant,
rotates whole heads, and lets all pictures of a prompt see one another.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.bounds import layer_count
from penstock.families.minimax_m3 import MINIMAX_M3
from penstock.families.vision.qwen_vl import MAX_FRAMES, MAX_MERGE
from penstock.families.vision.reading import (
    MAX_PATCH,
    MAX_WIDTH,
    TextHalf,
    VisionFamily,
    activation,
    bounded,
    heads,
    only_colours,
    projector_activation,
)
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.projector_spec import TwiceProjector
from penstock.model.tower_spec import RotaryPositions, TowerSpec, VisionSpec

MAX_TOGETHER = 4096
"""Groups of frames that see one another, at most."""
MERGING = "img_token_compression_config"
USUAL = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "patch_size": 14,
}
"""Defaults of transformers' MiniMaxM3VLVisionConfig."""


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec | None:
    if not section.values:
        return None
    section = section.completed(**USUAL)
    hub.only(
        fields,
        process_image_mode="dynamic_res",
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    fields.ignore("process_image_mode", "vision_feature_layer", "vision_feature_select_strategy")
    if projector_activation(fields) != "gelu":
        raise fields.wrong("projector_hidden_act", "gelu")
    inner = bounded(fields, "projector_hidden_size", MAX_WIDTH, text.hidden_size)
    merging = section.section(MERGING)  # in the makers' files
    fields.ignore(MERGING)  # says what the tower's section says
    hub.only(merging, image_token_compression_method="patch_merge")
    merging.ignore("image_token_compression_method")
    projector = TwiceProjector(
        side=bounded(
            section, "spatial_merge_size", MAX_MERGE, merging.integer("spatial_merge_size", 2)
        ),
        inner=inner,
        bias=fields.flag("multimodal_projector_bias", True),
        square_bias=fields.flag("patch_merge_bias", True),
    )
    tower = _tower(section, merging)
    hub.refuse_unknown(merging, ())
    return VisionSpec(tower=tower, projector=projector)


def _tower(section: Fields, merging: Fields) -> TowerSpec:
    section.ignore("image_size")  # There is no table.
    hub.only(section, position_embedding_type="rope", rope_mode="3d")
    section.ignore("position_embedding_type", "rope_mode")
    only_colours(section, "num_channels")
    rope = section.section("rope_parameters")
    hub.only(rope, rope_type="axial")
    hidden = bounded(section, "hidden_size", MAX_WIDTH)
    frames = merging.integer("temporal_patch_size", 2)
    key = "vision_segment_max_frames"
    theta = rope.number("rope_theta", section.number("rope_theta", 10_000.0))
    tower = TowerSpec(
        hidden_size=hidden,
        intermediate_size=bounded(section, "intermediate_size", MAX_WIDTH),
        num_layers=layer_count(section, "num_hidden_layers"),
        num_heads=heads(section, "num_attention_heads", hidden),
        patch=bounded(section, "patch_size", MAX_PATCH),
        frames=bounded(section, "temporal_patch_size", MAX_FRAMES, frames),
        together=bounded(section, key, MAX_TOGETHER) if key in section else 0,
        norm=NormSpec(kind="layer", eps=section.number("layer_norm_eps", 1e-5), bias=True),
        activation=activation(section, "gelu"),
        positions=RotaryPositions(theta=theta, timed=True),
        first_norm=True,
    )
    if tower.head_dim < 6:
        raise UnsupportedModel(
            f"{section.where}: heads of {tower.head_dim} numbers can't rotate by frame, row and "
            "column; hidden_size / num_attention_heads must be at least 6"
        )
    return tower


MINIMAX_M3_VISION = VisionFamily(
    "minimax_m3",
    ("MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3VLForConditionalGeneration"),
    "MiniMax M3",
    {name: TextHalf(MINIMAX_M3) for name in ("minimax_m3_vl_text", "minimax_m3")},
    _read,
    usual="minimax_m3_vl_text",
    harmless=frozenset(
        {
            "image_grid_pinpoints",  # of older models of the makers, as the next
            "image_seq_length",
            "image_token_id",
            "image_token_index",
            "num_reward_heads",
            "video_token_id",
            "video_token_index",
        }
    ),
)
