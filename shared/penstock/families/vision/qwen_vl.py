"""Qwen2-VL and Qwen2.5-VL: a tower for pictures of any form, whose patches rotate by row and
column, and Qwen 2, whose tokens have positions of three numbers.

Source: Wang et al., "Qwen2-VL", 2024; Qwen team, "Qwen2.5-VL technical report", 2025.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.bounds import layer_count
from penstock.families.family import Family
from penstock.families.media_tokens import MediaTokens
from penstock.families.qwen2 import QWEN2
from penstock.families.qwen3 import QWEN3, QWEN3_MOE
from penstock.families.tower_names import QWEN
from penstock.families.vision.pictures import merged_patches
from penstock.families.vision.reading import (
    MAX_PATCH,
    MAX_SIDE,
    MAX_WIDTH,
    VISION,
    TextHalf,
    Videos,
    VisionFamily,
    activation,
    bounded,
    heads,
    only_colours,
)
from penstock.families.vision.video_processor import VideoSettings, sampling_of
from penstock.families.vision.videos import frames_in_patches, video_facts, with_changes
from penstock.formats.fields import Fields
from penstock.forms.patches import VideoFrames
from penstock.forms.video import GroupTexts
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import MergerProjector
from penstock.model.tower_spec import RotaryPositions, TowerSpec, VisionSpec, WindowSpec

MAX_GROUP = 16
MAX_MERGE = 16
MAX_WINDOW = 4096
EPS = 1e-6
"""Epsilon of all norms of the tower and the merger."""
DEFAULTS: dict[str, object] = {
    "vocab_size": 152_064,
    "hidden_size": 8192,
    "intermediate_size": 29_568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1_000_000.0,
}
"""Defaults of transformers' Qwen2VLTextConfig and its like."""
SECTIONS = "mrope_section"
INTERLEAVED = "mrope_interleaved"
ABOUT_PICTURES = (
    "image_token_id",
    "video_token_id",
    "vision_end_token_id",
    "vision_start_token_id",
    "vision_token_id",
)
"""Keys of config.json that transformers before version 5 writes in addition to the decoder's."""


def _flat(fields: Fields) -> Fields:
    return fields.without(VISION, "model_type", *ABOUT_PICTURES)


def with_sections(
    fields: Fields, family: Family, usual: tuple[int, ...] = (), *, interleaved: bool = False
) -> ModelConfig:
    """A family's decoder, and how many rotary pairs go by time, row and column; usual: where
    config.json doesn't say; interleaved: as RopeSpec has it. Raises UnsupportedModel for sections
    that don't fit its heads."""
    key = "rope_parameters" if "rope_parameters" in fields else "rope_scaling"
    rope = fields.section(key)
    stated = SECTIONS in rope or not usual
    sections = tuple(rope.listed(SECTIONS, int)) if stated else usual
    if rope.flag(INTERLEAVED, interleaved) != interleaved:
        raise rope.wrong(INTERLEAVED, str(interleaved).lower())
    plain = {
        name: value for name, value in rope.values.items() if name not in (SECTIONS, INTERLEAVED)
    }
    kinds = {name: "default" for name in ("type", "rope_type") if plain.get(name) == "mrope"}
    text = family.read_hub(fields.replaced({key: plain | kinds}))
    (spec,) = text.ropes
    if len(sections) != 3 or min(sections) < 0 or sum(sections) != spec.dims // 2:
        raise UnsupportedModel(
            f"{rope.where}: {SECTIONS} is {str(list(sections))[:80]}; three numbers are needed "
            f"that add up to {spec.dims // 2}"
        )
    turning = msgspec.structs.replace(spec, sections=sections, interleaved=interleaved)
    return msgspec.structs.replace(text, ropes=(turning,))


def _decoder(fields: Fields) -> ModelConfig:
    return with_sections(fields, QWEN2)


HALF = TextHalf(
    Family(QWEN2.name, (), QWEN2.known_as, _decoder, hub_names=QWEN2.hub_names), DEFAULTS
)


def vision_tower(section: Fields, hidden: int, kind: str, act: str, **parts: Any) -> TowerSpec:
    """kind: of its norms, rms or layer. act: its activation, where config.json doesn't say."""
    section.ignore("tokens_per_second", "spatial_patch_size")  # of videos; the same as patch_size
    only_colours(section, "in_chans", "in_channels")
    rope = section.section("rope_parameters")
    tower = TowerSpec(
        hidden_size=hidden,
        num_layers=layer_count(section, "depth"),
        num_heads=heads(section, "num_heads", hidden),
        patch=bounded(section, "patch_size", MAX_PATCH, 14),
        frames=bounded(section, "temporal_patch_size", MAX_GROUP, 2),
        norm=NormSpec(kind="rms" if kind == "rms" else "layer", eps=EPS, bias=kind == "layer"),
        activation=activation(section, act),
        positions=RotaryPositions(theta=rope.number("rope_theta", 10_000.0)),
        **parts,
    )
    if tower.head_dim % 4:
        raise UnsupportedModel(
            f"{section.where}: heads of {tower.head_dim} numbers can't rotate by row and column; "
            "a multiple of 4 is needed"
        )
    return tower


def vision_spec(section: Fields, tower: TowerSpec) -> VisionSpec:
    side = bounded(section, "spatial_merge_size", MAX_MERGE, 2)
    return VisionSpec(tower=tower, projector=MergerProjector(side=side, norm=tower.norm))


def _read_2(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    section = section.completed(depth=32, embed_dim=1280, num_heads=16, mlp_ratio=4)
    hidden = bounded(section, "embed_dim", MAX_WIDTH)
    inner = int(hidden * section.number("mlp_ratio"))
    if not 1 <= inner <= MAX_WIDTH:
        raise section.wrong("mlp_ratio", f"a factor that gives 1 to {MAX_WIDTH}")
    same_size(section, "hidden_size", text)
    tower = vision_tower(section, hidden, "layer", "quick_gelu", intermediate_size=inner)
    return vision_spec(section, tower)


def _read_2_5(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    return read_tower(section, text)


def read_tower(section: Fields, text: ModelConfig) -> VisionSpec:
    """Returns Qwen2.5-VL's vision tower. Raises UnsupportedModel."""
    section = section.completed(
        depth=32,
        hidden_size=3584,
        num_heads=16,
        intermediate_size=3420,
        fullatt_block_indexes=[7, 15, 23, 31],
    )
    same_size(section, "out_hidden_size", text)
    tower = vision_tower(
        section,
        bounded(section, "hidden_size", MAX_WIDTH),
        "rms",
        "silu",
        intermediate_size=bounded(section, "intermediate_size", MAX_WIDTH),
        gated=True,
    )
    windows = _windows(section, tower)
    return vision_spec(section, msgspec.structs.replace(tower, windows=windows))


def _windows(section: Fields, tower: TowerSpec) -> WindowSpec:
    pixels = bounded(section, "window_size", MAX_WINDOW, 112)
    merge = bounded(section, "spatial_merge_size", MAX_MERGE, 2)
    whole = section.listed("fullatt_block_indexes", int)
    if any(not 0 <= layer < tower.num_layers for layer in whole):
        raise section.wrong("fullatt_block_indexes", f"layers below {tower.num_layers}")
    merged = pixels // merge // tower.patch
    if merged < 1:
        raise UnsupportedModel(
            f"{section.where}: window_size {pixels} is less than {merge} patches of {tower.patch}"
        )
    return WindowSpec(side=merged * merge, whole=tuple(sorted(set(whole))))


def same_size(section: Fields, key: str, text: ModelConfig) -> None:
    """Raises UnsupportedModel unless the tower's rows are of the decoder's size."""
    size = section.integer(key, text.hidden_size)
    if size != text.hidden_size:
        raise UnsupportedModel(
            f"{section.where}: {key} is {size}, and the decoder's hidden size {text.hidden_size}"
        )


def videos(settings: VideoSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """Qwen2-VL's: one frame's rows follow another's."""
    return video_facts(_one_by_one(settings, config), tokens)


def _one_by_one(settings: VideoSettings, config: Fields) -> VideoFrames:
    video = frames_in_patches(settings, config, of_all=False)
    return with_changes(video, sampling=sampling_of(settings))


def videos_by_time(settings: VideoSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """Qwen2.5-VL's: positions are as far apart as times."""
    video = _one_by_one(settings, config)
    vision = config.section("vision_config")
    rate = vision.number("tokens_per_second", 4)
    if not 0 <= rate <= 1000:
        raise vision.wrong("tokens_per_second", "0 to 1000")
    return video_facts(with_changes(video, positions_per_second=rate), tokens)


def stamped_videos(settings: VideoSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """Qwen3-VL's: each group of frames stands after its time as text."""
    video = frames_in_patches(settings, config, of_all=True)
    begin, _ = tokens.named("vision_start_token_id")
    end, _ = tokens.named("vision_end_token_id")
    texts = GroupTexts(begin=begin, end=end, stamp="tagged")
    found = video_facts(
        with_changes(video, sampling=sampling_of(settings, "ends"), texts=texts), tokens
    )
    # Each group has its own tokens around it; those of the template stood around all of them.
    return msgspec.structs.replace(found, placeholder=f"{begin}{found.token}{end}")


STAMPED = Videos(stamped_videos, "Qwen3VLVideoProcessor")

QWEN2_VL = VisionFamily(
    "qwen2_vl",
    ("Qwen2VLForConditionalGeneration",),
    "Qwen2-VL",
    {"qwen2_vl_text": HALF},
    _read_2,
    usual="qwen2_vl_text",
    flat=_flat,
    pictures=merged_patches,
    videos=Videos(videos, "Qwen2VLVideoProcessor"),
    hub_names=QWEN,
)
QWEN2_5_VL = VisionFamily(
    "qwen2_5_vl",
    ("Qwen2_5_VLForConditionalGeneration",),
    "Qwen2.5-VL",
    {"qwen2_5_vl_text": HALF},
    _read_2_5,
    usual="qwen2_5_vl_text",
    flat=_flat,
    pictures=merged_patches,
    videos=Videos(videos_by_time, "Qwen2VLVideoProcessor"),
    hub_names=QWEN,
)


# Qwen3-VL: a tower for pictures of any form, three of whose layers give the decoder's first layers
# something, too, and Qwen 3, dense or with experts, whose tokens have positions of three numbers.
#
# Source: Qwen team, "Qwen3-VL technical report", 2025.

QWEN3_SECTIONS = (24, 20, 20)
"""Pairs that rotate by frame, row and column, where config.json doesn't say."""
DENSE: dict[str, object] = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 128_000,
    "rope_theta": 500_000.0,
}
EXPERTS: dict[str, object] = {
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "max_position_embeddings": 128_000,
    "rope_theta": 500_000.0,
    "moe_intermediate_size": 1408,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "head_dim": -1,  # hidden size / heads
}
"""Defaults of transformers' Qwen3VLTextConfig and Qwen3VLMoeTextConfig."""


def _dense(fields: Fields) -> ModelConfig:
    return with_sections(fields, QWEN3, QWEN3_SECTIONS, interleaved=True)


def _experts(fields: Fields) -> ModelConfig:
    """Config of a decoder whose weights of experts always add up to 1, whatever config.json says of
    it."""
    fields.ignore("norm_topk_prob")
    return with_sections(
        fields.replaced({"norm_topk_prob": True}), QWEN3_MOE, QWEN3_SECTIONS, interleaved=True
    )


def table_tower(section: Fields, text: ModelConfig) -> VisionSpec:
    """Returns the vision tower of Qwen3-VL and Qwen3.5, without levels of DeepStack."""
    section = section.completed(
        depth=27,
        hidden_size=1152,
        num_heads=16,
        intermediate_size=4304,
        patch_size=16,
        num_position_embeddings=2304,
    )
    same_size(section, "out_hidden_size", text)
    tower = vision_tower(
        section,
        bounded(section, "hidden_size", MAX_WIDTH),
        "layer",
        "gelu_pytorch_tanh",
        intermediate_size=bounded(section, "intermediate_size", MAX_WIDTH),
        patch_bias=True,
    )
    places = bounded(section, "num_position_embeddings", MAX_SIDE**2)
    if math.isqrt(places) ** 2 != places:
        raise section.wrong("num_position_embeddings", "a square number")
    positions = RotaryPositions(theta=_theta(tower.positions), table=math.isqrt(places))
    return vision_spec(section, msgspec.structs.replace(tower, positions=positions))


def _read_qwen3(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    section = section.completed(deepstack_visual_indexes=[8, 16, 24])
    spec = table_tower(section, text)
    return msgspec.structs.replace(
        spec, deepstack_layers=_deepstack_layers(section, spec.tower.num_layers, text)
    )


def _theta(positions: object) -> float:
    return positions.theta if isinstance(positions, RotaryPositions) else 10_000.0


def _deepstack_layers(section: Fields, layers: int, text: ModelConfig) -> tuple[int, ...]:
    key = "deepstack_visual_indexes"
    found = section.listed(key, int)
    if sorted(set(found)) != found or any(not 0 <= layer < layers for layer in found):
        raise section.wrong(key, f"ascending layers below {layers}")
    if len(found) > text.num_layers:
        raise UnsupportedModel(
            f"{section.where}: {key} names {len(found)} layers, and the decoder has "
            f"{text.num_layers}"
        )
    return tuple(found)


QWEN3_VL = VisionFamily(
    "qwen3_vl",
    ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"),
    "Qwen3-VL",
    {
        "qwen3_vl_text": TextHalf(
            Family(QWEN3.name, (), QWEN3.known_as, _dense, hub_names=QWEN3.hub_names), DENSE
        ),
        "qwen3_vl_moe_text": TextHalf(
            Family(QWEN3_MOE.name, (), QWEN3_MOE.known_as, _experts, hub_names=QWEN3_MOE.hub_names),
            EXPERTS,
        ),
    },
    _read_qwen3,
    usual="qwen3_vl_text",
    pictures=merged_patches,
    videos=STAMPED,
    hub_names=QWEN,
)
