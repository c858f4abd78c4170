"""GLM-4.1V, 4.5V and 4.6V: a tower for pictures of any form with a table of positions that is
stretched cubically, and GLM-4, dense or with experts, whose tokens have positions of three numbers.
GLM-OCR: the same without the table, with norms of queries and keys, and biases the other way round.

Sources: GLM-V team, "GLM-4.1V-Thinking", 2025; the model card of GLM-OCR, 2026.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.families.family import Family
from penstock.families.glm4 import GLM4, GLM4_MOE
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import IN_BLOCK, under
from penstock.families.vision.pictures import merged_patches
from penstock.families.vision.qwen_vl import MAX_MERGE, same_size, vision_tower, with_sections
from penstock.families.vision.reading import (
    MAX_PIXELS,
    MAX_WIDTH,
    TextHalf,
    Videos,
    VisionFamily,
    bounded,
    patches_in_row,
)
from penstock.families.vision.video_processor import MAX_FRAMES, USUAL_FRAMES, VideoSettings
from penstock.families.vision.videos import frames_in_patches, video_facts, with_changes
from penstock.formats.fields import Fields
from penstock.forms.video import FrameSampling, GroupTexts
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import GatedMergerProjector
from penstock.model.tower_spec import RotaryPositions, TowerSpec, VisionSpec

SECTIONS = (8, 12, 12)
"""Pairs that rotate by frame, row and column, where config.json doesn't say."""
PROJECTOR_NORM = NormSpec(kind="layer", eps=1e-5, bias=True)
"""Whatever config.json says of the tower's norms."""
COLOURS = 3
DENSE: dict[str, object] = {
    "vocab_size": 151_552,
    "hidden_size": 4096,
    "intermediate_size": 13_696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": -1,  # hidden size / heads
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-5,
    "partial_rotary_factor": 1.0,
}
"""Defaults of transformers' Glm4vTextConfig."""
EXPERTS: dict[str, object] = {
    "vocab_size": 151_424,
    "hidden_size": 4096,
    "intermediate_size": 10_944,
    "num_hidden_layers": 46,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": -1,
    "max_position_embeddings": 65_536,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 8,
    "n_routed_experts": 128,
    "attention_bias": True,
}
"""Defaults of transformers' Glm4vMoeTextConfig."""
OF_OCR: dict[str, object] = DENSE | {
    "vocab_size": 59_392,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
}
"""Defaults of transformers' GlmOcrTextConfig."""


def _half(family: Family, defaults: dict[str, object], **always: object) -> TextHalf:
    """always: settings that have one value in this family, whatever config.json says of them."""

    def read(fields: Fields) -> ModelConfig:
        fields.ignore(*always, "num_nextn_predict_layers")
        return with_sections(fields.replaced(always), family, SECTIONS)

    return TextHalf(
        Family(
            family.name,
            (),
            family.known_as,
            read,
            hub_names=family.hub_names,
            unserved=family.unserved,
        ),
        defaults,
    )


def _tower(section: Fields, text: ModelConfig, inner: int, **parts: Any) -> TowerSpec:
    """inner: the feed-forward's size."""
    same_size(section, "out_hidden_size", text)
    tower = vision_tower(
        section,
        bounded(section, "hidden_size", MAX_WIDTH),
        "rms",
        "silu",
        intermediate_size=inner,
        gated=True,
        patch_bias=True,
        qkv_bias=section.flag("attention_bias"),
        last_norm=True,
        **parts,
    )
    eps = section.number("rms_norm_eps", 1e-5)
    return msgspec.structs.replace(tower, norm=msgspec.structs.replace(tower.norm, eps=eps))


def _spec(section: Fields, tower: TowerSpec, inner: int) -> VisionSpec:
    """inner: the projector's."""
    side = bounded(section, "spatial_merge_size", MAX_MERGE, 2)
    return VisionSpec(
        tower=tower,
        projector=GatedMergerProjector(
            side=side, norm=PROJECTOR_NORM, inner=inner, activation=tower.activation
        ),
    )


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    section = section.completed(
        depth=24, hidden_size=1536, num_heads=12, attention_bias=False, intermediate_size=13_696
    )
    tower = _tower(section, text, text.hidden_size, bias=False, patch_norm=True)
    image = bounded(section, "image_size", MAX_PIXELS, 336)
    positions = RotaryPositions(
        theta=tower.rotary.theta if tower.rotary is not None else 10_000.0,
        table=patches_in_row(section, image, tower.patch),
        cubic=True,
    )
    inner = bounded(section, "intermediate_size", MAX_WIDTH)
    return _spec(section, msgspec.structs.replace(tower, positions=positions), inner)


def _read_ocr(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    section.ignore("image_size")  # There is no table.
    section = section.completed(
        depth=24, hidden_size=1024, num_heads=16, attention_bias=True, intermediate_size=4096
    )
    inner = bounded(section, "intermediate_size", MAX_WIDTH)
    bias = section.flag("attention_bias")
    tower = _tower(section, text, inner, bias=bias, head_norms=True)
    return _spec(section, tower, COLOURS * text.hidden_size)


BEGIN, END = "<|begin_of_image|>", "<|end_of_image|>"
MAX_SECONDS = 1_000_000


def videos(settings: VideoSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """GLM-4.1V's and its successors': the time of each group of frames follows it; its rows have
    the image token."""
    later = settings.kind == "Glm46VVideoProcessor"
    video = frames_in_patches(settings, config, of_all=True)
    settings.ignore("num_frames", "min_frames", "max_frames")
    fps, longest = settings.number("fps", 2.0), settings.number("max_duration", 300.0)
    if not (0 < fps <= 1000 and 0 < longest <= MAX_SECONDS):
        raise settings.wrong("fps", f"above 0, to 1000, with max_duration to {MAX_SECONDS}")
    sampling = FrameSampling(
        num_frames=0,
        fps=0.0 if later else fps,
        max_frames=MAX_FRAMES,
        rule="glm46v" if later else "glm4v",
        longest=longest,
    )
    if not settings.flag("do_sample_frames", True):
        sampling = FrameSampling(num_frames=USUAL_FRAMES)
    for text in (BEGIN, END):
        tokens.check(text)
    texts = GroupTexts(begin=BEGIN, end=END, stamp="tenths" if later else "whole")
    found = video_facts(with_changes(video, sampling=sampling, texts=texts), tokens)
    return msgspec.structs.replace(found, shown_id=tokens.named("image_token_id")[1])


NAMES = under(
    "visual",
    {
        "embeddings": "",
        "embeddings.position_ids": None,
        "rotary_pos_emb": None,
        "patch_embed.proj": "patch_embedding",
        "post_conv_layernorm": "patch_norm",
        "post_layernorm": "last_norm",
        "downsample": "projector.merging",
        **under("blocks.*", IN_BLOCK, "layers.*"),
        **under("merger", {"proj": "1", "post_projection_norm": "norm"}, "projector"),
    },
)

GLM4V = VisionFamily(
    "glm4v",
    (
        "Glm4vForConditionalGeneration",
        "Glm4vMoeForConditionalGeneration",
        "Glm46VForConditionalGeneration",
    ),
    "GLM-4.1V, 4.5V, 4.6V",
    {
        "glm4v_text": _half(GLM4, DENSE, attention_bias=True),
        "glm4v_moe_text": _half(GLM4_MOE, EXPERTS, use_qk_norm=False),
    },
    _read,
    usual="glm4v_text",
    pictures=merged_patches,
    videos=Videos(
        videos,
        "Glm4vVideoProcessor",
        {"Glm46VForConditionalGeneration": "Glm46VVideoProcessor"},
    ),
    hub_names=NAMES,
)
GLM_OCR = VisionFamily(
    "glm_ocr",
    ("GlmOcrForConditionalGeneration",),
    "GLM-OCR",
    {"glm_ocr_text": _half(GLM4, OF_OCR, attention_bias=False)},
    _read_ocr,
    usual="glm_ocr_text",
    pictures=merged_patches,
    hub_names=NAMES,
)
