"""Kimi K2.5 and K2.6, and Kimi-VL before them: MoonViT, a tower for pictures of any form with a
stretched table of positions and patches that rotate by column and row in turn, two products over
squares of patches, and DeepSeek-V3's decoder. Pictures are served; videos of Kimi K2.5 aren't yet,
and Kimi-VL's makers take none.

Source: Kimi team, "Kimi K2.5", 2026; "Kimi-VL technical report", 2025.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.bounds import layer_count
from penstock.families.deepseek import DEEPSEEK_V3
from penstock.families.vision.qwen_vl import MAX_MERGE
from penstock.families.vision.reading import (
    MAX_PATCH,
    MAX_SIDE,
    MAX_WIDTH,
    TextHalf,
    VisionFamily,
    activation,
    bounded,
    heads,
    projector_activation,
)
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.projector_spec import MergerProjector
from penstock.model.tower_spec import RotaryPositions, TowerSpec, VisionSpec

EPS = 1e-5
"""Epsilon of the tower's norms."""
THETA = 10_000.0
OF_VL = {"pos_emb_height": "init_pos_emb_height", "pos_emb_width": "init_pos_emb_width"}
"""transformers' names of settings of Kimi K2.5, and Kimi-VL's makers'."""
OF_K25 = OF_VL | {
    "hidden_size": "vt_hidden_size",
    "intermediate_size": "vt_intermediate_size",
    "num_hidden_layers": "vt_num_hidden_layers",
    "num_attention_heads": "vt_num_attention_heads",
}
"""The keys of Kimi K2.5's makers."""
USUAL = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "pos_emb_height": 64,
    "pos_emb_width": 64,
    "patch_size": 14,
}
DEFAULTS: dict[str, object] = {
    "vocab_size": 129_280,
    "hidden_size": 7168,
    "intermediate_size": 18_432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "max_position_embeddings": 4096,
}
"""Defaults of transformers' DeepseekV3Config."""
OF_VIDEOS = ("init_pos_emb_time", "pos_emb_time", "video_attn_type")


def _completed(section: Fields, makers: dict[str, str]) -> Fields:
    """makers: transformers' names, and those of the file's makers."""
    given = {key: section.values[old] for key, old in makers.items() if old in section}
    section.ignore(*makers.values())
    return section.completed(**{**USUAL, **given})


def _merge(section: Fields) -> int:
    """Patches in a row of a square that becomes one row."""
    key = "merge_kernel_size"
    sides = section.listed(key, int) if key in section else [2, 2]
    if len(sides) != 2 or sides[0] != sides[1] or not 1 <= sides[0] <= MAX_MERGE:
        raise section.wrong(key, f"a square of 1 to {MAX_MERGE} patches")
    return sides[0]


def _read_k25(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    section = _completed(section, OF_K25)
    section.ignore(*OF_VIDEOS)
    hub.only(
        section,
        merge_type="sd2_tpool",
        mm_projector_type="patchmerger",
        pos_emb_type="divided_fixed",
        text_hidden_size=text.hidden_size,
    )
    section.ignore("merge_type", "mm_projector_type", "pos_emb_type", "text_hidden_size")
    if projector_activation(section) != "gelu":
        raise section.wrong("projector_hidden_act", "gelu")
    hidden = bounded(section, "hidden_size", MAX_WIDTH)
    for where, key in ((section, "mm_hidden_size"), (fields, "projection_hidden_size")):
        if where.integer(key, hidden) != hidden:
            raise where.wrong(key, f"the tower's size, {hidden}")
    rope = section.section("rope_parameters")
    hub.only(rope, rope_type="axial")
    eps = fields.number("projection_layer_norm_eps", section.number("projector_ln_eps", EPS))
    act = activation(section, "gelu_pytorch_tanh")
    return _seen(section, act=act, theta=rope.number("rope_theta", THETA), eps=eps)


def _read_vl(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    """Reads Kimi-VL's: its makers' code says what its files don't."""
    section = _completed(section, OF_VL)
    return _seen(section, act="gelu_tanh", theta=THETA, eps=EPS)


def _seen(section: Fields, *, act: Any, theta: float, eps: float) -> VisionSpec:
    """act: of the layers.  eps: of the projector's norm."""
    hidden = bounded(section, "hidden_size", MAX_WIDTH)
    side = bounded(section, "pos_emb_height", MAX_SIDE)
    if bounded(section, "pos_emb_width", MAX_SIDE) != side:
        raise section.wrong("pos_emb_width", f"pos_emb_height, {side}")
    tower = TowerSpec(
        hidden_size=hidden,
        intermediate_size=bounded(section, "intermediate_size", MAX_WIDTH),
        num_layers=layer_count(section, "num_hidden_layers"),
        num_heads=heads(section, "num_attention_heads", hidden),
        patch=bounded(section, "patch_size", MAX_PATCH),
        norm=NormSpec(kind="layer", eps=EPS, bias=True),
        activation=act,
        patch_bias=True,
        positions=RotaryPositions(
            theta=theta,
            table=side,
            cubic=True,
            by_turns=True,
            adjacent=True,
        ),
        last_norm=True,
    )
    if tower.head_dim % 4:
        raise UnsupportedModel(
            f"{section.where}: heads of {tower.head_dim} numbers can't rotate by row and column; "
            "hidden_size / num_attention_heads must be a multiple of 4"
        )
    norm = NormSpec(kind="layer", eps=eps, bias=True)
    return VisionSpec(tower=tower, projector=MergerProjector(side=_merge(section), norm=norm))


KIMI_K25 = VisionFamily(
    "kimi_k25",
    ("Kimi_K25ForConditionalGeneration", "KimiK25ForConditionalGeneration"),
    "Kimi K2.5, K2.6",
    {name: TextHalf(DEEPSEEK_V3, DEFAULTS) for name in ("deepseek_v3", "kimi_k2")},
    _read_k25,
    usual="deepseek_v3",
    harmless=frozenset(
        {
            "ignore_index",
            "image_token_id",
            "media_placeholder_token_id",
            "use_unified_vision_chunk",
            "video_placeholder",
            "video_token_id",
            "vision_end_token_id",
            "vision_start_token_id",
        }
    ),
)
KIMI_VL = VisionFamily(
    "kimi_vl",
    ("KimiVLForConditionalGeneration",),
    "Kimi-VL",
    {"deepseek_v3": TextHalf(DEEPSEEK_V3, nulls=True)},
    _read_vl,
    usual="deepseek_v3",
    harmless=frozenset({"ignore_index", "media_placeholder_token_id"}),
)
