"""MiniMax M3: CLIP's layers for pictures of any form and videos, whose patches rotate by frame, row
and column; two products over each patch and two over squares of them; and MiniMax M3's decoder.

Source: MiniMax, "MiniMax M3", 2026; the rotation as the makers' own code has it in SGLang, and as
vLLM and llama.cpp have it. transformers 5.17 reads frame and row where row and column are meant,
rotates whole heads, and lets all pictures of a prompt see one another.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.bounds import layer_count
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import CLIP, PROJECTOR, TWO, TowerNames, tower, under
from penstock.families.vision.image_processor import ImageSettings, pixels_of
from penstock.families.vision.pictures import in_patches
from penstock.families.vision.qwen_vl import MAX_GROUP, MAX_MERGE
from penstock.families.vision.reading import (
    MAX_PATCH,
    MAX_WIDTH,
    TextHalf,
    Videos,
    VisionFamily,
    activation,
    bounded,
    heads,
    only_colours,
    projector_activation,
)
from penstock.families.vision.video_processor import MAX_FRAMES, VideoSettings
from penstock.families.vision.videos import check_frames, video_facts
from penstock.formats.fields import Fields
from penstock.forms.patches import VideoFrames
from penstock.forms.video import FrameSampling, GroupTexts
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import TwiceProjector
from penstock.model.tower_spec import RotaryPositions, TowerSpec, VisionSpec
from penstock_families.minimax_m3 import MINIMAX_M3

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
        frames=bounded(section, "temporal_patch_size", MAX_GROUP, frames),
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


OF_MAKERS = (
    "add_start_end_special_tokens",
    "img_token_compression_config",
    "process_image_mode",
    "size",
)
"""Settings in the file of MiniMax M3's makers that transformers doesn't have."""
BEGIN, END = "]<]start of image[>[", "]<]end of image[>["


def of_makers(values: dict[str, Any], whole: dict[str, Any], where: str) -> dict[str, Any]:
    """The settings as transformers has them, of the makers' own file. Its size is that of older
    models, and no picture gets it. Raises UnsupportedModel."""
    if "process_image_mode" not in values:
        return values
    if values["process_image_mode"] != "dynamic_res":
        raise UnsupportedModel(f"{where}: process_image_mode must be dynamic_res")
    merging = values.get("img_token_compression_config")
    if not isinstance(merging, dict):
        raise UnsupportedModel(f"{where}: img_token_compression_config must be a JSON object")
    named = {"spatial_merge_size": "merge_size", "temporal_patch_size": "temporal_patch_size"}
    found = {ours: merging[theirs] for theirs, ours in named.items() if theirs in merging}
    kept = {key: value for key, value in values.items() if key not in OF_MAKERS}
    return {"image_processor_type": "MiniMaxM3VLImageProcessor"} | found | kept


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    size = settings.sizes("size", 4 * 28 * 28, 672 * 672)
    vision = config.section("vision_config")
    merging = vision.section("img_token_compression_config")
    found = in_patches(settings, vision.completed(**merging.values), tokens, size)
    for text in (BEGIN, END):
        tokens.check(text)
    return msgspec.structs.replace(found, before=BEGIN, behind=END)


def videos(settings: VideoSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """MiniMax M3's: each group of frames stands after its time. Which frames are shown is the
    makers' own rule, by their code in SGLang: their video processor shows all that it is given, and
    total_pixels bounds nothing there."""
    vision = config.section("vision_config")
    merging = vision.section("img_token_compression_config")
    settings.ignore("size", "total_pixels", "min_frames", "num_frames", "do_sample_frames")
    fps, most = settings.number("fps", 1.0), settings.integer("max_frames", 768)
    if not (0 < fps <= 1000 and 1 <= most <= MAX_FRAMES):
        raise settings.wrong("fps", f"above 0, to 1000, with max_frames to {MAX_FRAMES}")
    patch, merge = settings.integer("patch_size", 14), settings.integer("merge_size", 2)
    for text in (BEGIN, END):
        tokens.check(text)
    video = VideoFrames(
        pixels=pixels_of(settings),
        min_pixels=settings.integer("min_pixels"),
        max_pixels=settings.integer("max_pixels"),
        patch=patch,
        merge=merge,
        group=settings.integer("temporal_patch_size", 2),
        sampling=FrameSampling(num_frames=0, fps=fps, max_frames=most, rule="apart"),
        texts=GroupTexts(
            begin=BEGIN,
            end=END,
            stamp="bracketed",
        ),
    )
    check_frames(video, settings, vision.completed(**merging.values))
    return video_facts(video, tokens)


_NAMES: TowerNames = {
    **CLIP,
    # As transformers saves them.
    "encoder.layers.*.block_sparse_moe.fc1": "layers.*.up_proj",
    "encoder.layers.*.block_sparse_moe.fc2": "layers.*.down_proj",
}
_SQUARES: TowerNames = {
    f"multi_modal_projector.merge_{name}": f"projector.squares.{ours}" for name, ours in TWO.items()
}
NAMES = tower(_NAMES) | PROJECTOR | _SQUARES | under("patch_merge_mlp", TWO, "projector.squares")

MINIMAX_M3_VISION = VisionFamily(
    "minimax_m3",
    ("MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3VLForConditionalGeneration"),
    "MiniMax M3",
    {name: TextHalf(MINIMAX_M3) for name in ("minimax_m3_vl_text", "minimax_m3")},
    _read,
    usual="minimax_m3_vl_text",
    harmless=frozenset({"image_grid_pinpoints", "image_seq_length", "num_reward_heads"}),
    pictures=pictures,
    videos=Videos(videos, "MiniMaxM3VLVideoProcessor", makers=of_makers),
    makers=of_makers,
    hub_names=NAMES,
)
