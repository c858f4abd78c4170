"""Qwen3-Omni's "thinker" (pictures and sounds in, text out): Qwen3-VL's tower, whose layers give
the decoder's first ones something, too, Qwen3-ASR's encoder of blocks (`qwen3_asr.py`), and Qwen 3
with experts, whose tokens have positions of three numbers. The speech part isn't read. Pictures and
sounds are served; videos, whose positions go by time, aren't.

Source: Qwen team, "Qwen3-Omni technical report", 2025.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.qwen3 import QWEN3_MOE
from penstock.families.tower_names import QWEN, SPEAKS
from penstock.families.vision.qwen2_5_omni import pictures
from penstock.families.vision.qwen_vl import (
    QWEN3_SECTIONS,
    QWEN3_VL,
    with_sections,
)
from penstock.families.vision.reading import VISION, TextHalf, VisionFamily
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig

TEXT_DEFAULTS: dict[str, object] = {
    "vocab_size": 3584,
    "hidden_size": 2048,
    "intermediate_size": 18_944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
    "rope_theta": 1_000_000.0,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "num_experts": 128,
    "norm_topk_prob": True,
    "head_dim": -1,  # hidden size / heads
}
"""Defaults of transformers' Qwen3OmniMoeTextConfig."""
OMNI = ("Qwen3OmniMoeForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration")
"""Qwen3-Omni as a whole, and what listens and writes in it."""
KNOWN_AS = "Qwen3-Omni"
USUAL = "qwen3_omni_moe_text"
BESIDE = frozenset(
    {
        "audio_config",
        "position_id_per_seconds",  # of videos, as the next
        "seconds_per_chunk",
        VISION,
    }
)


def _text(fields: Fields) -> ModelConfig:
    """The makers say twice that sections are interleaved."""
    hub.only(fields, sliding_window=None)
    key = "rope_parameters" if "rope_parameters" in fields else "rope_scaling"
    rope = fields.section(key)
    hub.only(rope, interleaved=True)
    plain = {name: value for name, value in rope.values.items() if name != "interleaved"}
    fields = fields.replaced({key: plain})
    return with_sections(fields, QWEN3_MOE, QWEN3_SECTIONS, interleaved=True)


HALVES = {
    USUAL: TextHalf(
        Family(QWEN3_MOE.name, (), QWEN3_MOE.known_as, _text, hub_names=QWEN3_MOE.hub_names),
        TEXT_DEFAULTS,
    )
}
QWEN3_OMNI = VisionFamily(
    "qwen3_omni",
    OMNI,
    KNOWN_AS,
    HALVES,
    QWEN3_VL.read,
    usual=USUAL,
    harmless=BESIDE,
    pictures=pictures,
    hub_names=QWEN | dict.fromkeys(SPEAKS),
)
