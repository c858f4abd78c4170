"""EXAONE 4.5: Qwen2.5-VL's tower, whose heads share keys and values, before EXAONE 4, whose tokens
have positions of one number.

Source: LG AI Research, "EXAONE 4.5", 2026; what it computes, as transformers' class has it.
"""

from __future__ import annotations

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.tower_names import QWEN
from penstock.families.vision.pictures import merged_patches
from penstock.families.vision.qwen_vl import read_tower, videos
from penstock.families.vision.reading import TextHalf, Videos, VisionFamily
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.tower_spec import VisionSpec
from penstock_families.exaone4 import EXAONE4

DEFAULTS: dict[str, object] = {
    "vocab_size": 102_400,
    "hidden_size": 4096,
    "intermediate_size": 16_384,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 2048,
    "sliding_window": 4096,
}
"""Defaults of transformers' Exaone4Config."""
HALF = TextHalf(EXAONE4, DEFAULTS)


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    shared = section.integer("num_key_value_heads", 8)
    seen = read_tower(section, text)
    heads = seen.tower.num_heads
    if shared < 1 or heads % shared:
        raise UnsupportedModel(
            f"{section.where}: {heads} heads can't share {shared} key and value heads: the first "
            "must be a multiple of the second"
        )
    tower = msgspec.structs.replace(seen.tower, kv_heads=None if shared == heads else shared)
    return msgspec.structs.replace(seen, tower=tower)


EXAONE4_5 = VisionFamily(
    "exaone4_5",
    ("Exaone4_5_ForConditionalGeneration",),
    "EXAONE 4.5",
    {"exaone4": HALF, "exaone4_5_text": HALF},
    _read,
    usual="exaone4",
    pictures=merged_patches,
    videos=Videos(videos, "Qwen2VLVideoProcessor"),
    hub_names=QWEN,
)
