"""Qwen3-VL: a tower for pictures of any form, three of whose layers give the decoder's first layers
something, too, and Qwen 3, dense or with experts, whose tokens have positions of three numbers.

Source: Qwen team, "Qwen3-VL technical report", 2025.
"""

from __future__ import annotations

import math

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.family import Family
from penstock.families.qwen3 import QWEN3
from penstock.families.qwen3_moe import QWEN3_MOE
from penstock.families.vision.family import TextHalf, VisionFamily
from penstock.families.vision.qwen_vl import (
    ABOUT_PICTURES,
    same_size,
    vision_spec,
    vision_tower,
    with_sections,
)
from penstock.families.vision.reading import MAX_SIDE, MAX_WIDTH, bounded
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.vision_spec import RotaryPositions, VisionSpec

SECTIONS = (24, 20, 20)
"""Where config.json says nothing of them."""
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
    "num_experts_per_tok": 4,
    "head_dim": -1,  # hidden size / heads
}
"""Defaults of transformers' Qwen3VLTextConfig and Qwen3VLMoeTextConfig."""


def _dense(fields: Fields) -> ModelConfig:
    return with_sections(fields, QWEN3, SECTIONS, interleaved=True)


def _experts(fields: Fields) -> ModelConfig:
    """Config of a decoder whose weights of experts always add up to 1, whatever config.json says of
    it."""
    fields.ignore("norm_topk_prob")
    return with_sections(
        fields.replaced({"norm_topk_prob": True}), QWEN3_MOE, SECTIONS, interleaved=True
    )


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    section = section.completed(
        depth=27,
        hidden_size=1152,
        num_heads=16,
        intermediate_size=4304,
        patch_size=16,
        num_position_embeddings=2304,
        deepstack_visual_indexes=[8, 16, 24],
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
    spec = vision_spec(section, msgspec.structs.replace(tower, positions=positions))
    return msgspec.structs.replace(spec, taps=_taps(section, tower.num_layers, text))


def _theta(positions: object) -> float:
    return positions.theta if isinstance(positions, RotaryPositions) else 10_000.0


def _taps(section: Fields, layers: int, text: ModelConfig) -> tuple[int, ...]:
    key = "deepstack_visual_indexes"
    taps = section.listed(key, int)
    if sorted(set(taps)) != taps or any(not 0 <= layer < layers for layer in taps):
        raise section.wrong(key, f"ascending layers below {layers}")
    if len(taps) > text.num_layers:
        raise UnsupportedModel(
            f"{section.where}: {key} names {len(taps)} layers, and the decoder has "
            f"{text.num_layers}"
        )
    return tuple(taps)


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
    _read,
    usual="qwen3_vl_text",
    harmless=frozenset(ABOUT_PICTURES),
)
