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
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import TWO, TowerNames, under
from penstock.families.vision.image_processor import ImageSettings, pixels_of
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
from penstock.forms.patches import PatchImages
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
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


OF_MAKERS = {
    "in_patch_limit": "max_patches",
    "image_mean": "image_mean",
    "image_std": "image_std",
    "merge_kernel_size": "merge_size",
    "patch_limit_on_one_side": "size",
    "patch_size": "patch_size",
}
"""Settings of pictures in the file of Kimi K2.5's makers, and transformers' names. The others there
are of videos."""


def of_makers(values: dict[str, Any], whole: dict[str, Any], where: str) -> dict[str, Any]:
    """The settings as transformers has them, of the makers' own file; Kimi-VL's may name no class.
    Raises UnsupportedModel."""
    if "in_token_limit" in values:
        return {"image_processor_type": "KimiVLImageProcessor"} | values
    if "media_proc_cfg" not in values:
        return values
    values = values["media_proc_cfg"]
    if not isinstance(values, dict) or values.get("fixed_output_tokens") is not None:
        raise UnsupportedModel(f"{where}: media_proc_cfg must leave fixed_output_tokens null")
    found = {ours: values[name] for name, ours in OF_MAKERS.items() if name in values}
    if "size" in found:
        found["size"] = {"max_height": found["size"], "max_width": found["size"]}
    return found | {"image_processor_type": "Kimi_K25ImageProcessor"}


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    size = settings.section("size")
    longest = size.integer("max_height", 512)
    if size.integer("max_width", longest) != longest or not 1 <= longest <= 4096:
        raise settings.wrong("size", "one max_height and max_width, 1 to 4096 patches,")
    merge, most = settings.integer("merge_size", 2), settings.integer("max_patches", 16_384)
    named = ("merge_size", [merge, merge]), ("max_patches", most)
    return _never_larger(settings, config, tokens, *named, longest)


def pictures_of_vl(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """Its makers refuse a picture with a side of more patches than their rotation has places,
    which is made smaller here, as Kimi K2.5's is."""
    if not settings.flag("pad_input", False):
        raise settings.wrong("pad_input", "true")
    settings.ignore("num_pooled_tokens")
    named = "merge_kernel_size"
    merge = named, settings.listed(named, int) if named in settings else [2, 2]
    most = "in_token_limit", settings.integer("in_token_limit", 4096)
    return _never_larger(settings, config, tokens, merge, most, 512)


def _never_larger(
    settings: ImageSettings,
    config: Fields,
    tokens: MediaTokens,
    merged: tuple[str, list[int]],
    limit: tuple[str, int],
    longest: int,
) -> KindFacts:
    """merged: patches each way that become one row, and the name of that setting.  limit: patches
    that a picture has at most, and the name.  longest: patches that a side has at most."""
    patch, vision = settings.integer("patch_size", 14), config.section("vision_config")
    sides = vision.listed("merge_kernel_size", int) if "merge_kernel_size" in vision else [2, 2]
    (merge_name, square), (most_name, most) = merged, limit
    if patch != vision.integer("patch_size", 14) or not 1 <= patch <= 1024:
        raise settings.wrong("patch_size", "what the vision tower has")
    if square != sides or len(set(square)) != 1 or not 1 <= square[0] <= 64:
        raise settings.wrong(merge_name, "what the vision tower has")
    merge = square[0]
    if not merge**2 <= most <= (1 << 28) // patch**2:
        raise settings.wrong(most_name, f"{merge**2} to {(1 << 28) // patch**2}")
    image = PatchImages(
        pixels=pixels_of(settings),
        min_pixels=(patch * merge) ** 2,
        max_pixels=most * patch**2,
        patch=patch,
        merge=merge,
        frames=1,
        most_side=longest,
    )
    return KindFacts.marked(image, tokens.named("media_placeholder_token_id", "image_token_id"))


_BLOCK: TowerNames = {
    "norm0": "norm1",
    "norm1": "norm2",
    "mlp.fc0": "up_proj",
    "mlp.fc1": "down_proj",
    "wqkv": "qkv",
    "wo": "out_proj",
}
"""Modules of a layer, which count from 0."""
_PROJECTOR: TowerNames = {**TWO, "proj.0": "1", "proj.2": "2", "pre_norm": "norm"}
NAMES = (
    under(
        "vision_tower",
        {
            "patch_embed.proj": "patch_embedding",
            "encoder.patch_embed.proj": "patch_embedding",
            "patch_embed.pos_emb.weight": "position_grid",
            "patch_embed.pos_emb.time_weight": None,  # a buffer
            "encoder.final_layernorm": "last_norm",
            **under("encoder.blocks.*", _BLOCK, "layers.*"),
        },
    )
    | under("mm_projector", _PROJECTOR, "projector")
    | under("multi_modal_projector", _PROJECTOR, "projector")
)

KIMI_K25 = VisionFamily(
    "kimi_k25",
    ("Kimi_K25ForConditionalGeneration", "KimiK25ForConditionalGeneration"),
    "Kimi K2.5, K2.6",
    {name: TextHalf(DEEPSEEK_V3, DEFAULTS) for name in ("deepseek_v3", "kimi_k2")},
    _read_k25,
    usual="deepseek_v3",
    harmless=frozenset({"ignore_index", "use_unified_vision_chunk", "video_placeholder"}),
    pictures=pictures,
    makers=of_makers,
    hub_names=NAMES,
)
KIMI_VL = VisionFamily(
    "kimi_vl",
    ("KimiVLForConditionalGeneration",),
    "Kimi-VL",
    {"deepseek_v3": TextHalf(DEEPSEEK_V3, nulls=True)},
    _read_vl,
    usual="deepseek_v3",
    harmless=frozenset({"ignore_index"}),
    pictures=pictures_of_vl,
    makers=of_makers,
    hub_names=NAMES,
)
