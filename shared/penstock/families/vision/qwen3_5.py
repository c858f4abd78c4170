"""Qwen3.5 and Qwen3.6: Qwen3-VL's tower without DeepStack, before a decoder most of whose layers
are recurrent. Tokens have positions of three numbers in the layers that attend; recurrent layers
have no positions.

Source: Qwen team, "Qwen3.5", 2026.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.qwen3_next import QWEN3_5, QWEN3_5_MOE
from penstock.families.tower_names import QWEN
from penstock.families.vision.pictures import merged_patches
from penstock.families.vision.qwen_vl import ABOUT_PICTURES, STAMPED, table_tower, with_sections
from penstock.families.vision.reading import VISION, TextHalf, VisionFamily
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.tower_spec import VisionSpec

SECTIONS = (11, 11, 10)
"""Pairs that rotate by frame, row and column, where config.json doesn't say."""


def _half(family: Family) -> TextHalf:
    def read(fields: Fields) -> ModelConfig:
        return with_sections(fields, family, SECTIONS, interleaved=True)

    return TextHalf(
        Family(
            family.name,
            (),
            family.known_as,
            read,
            hub_names=family.hub_names,
            own_head=family.own_head,
        )
    )


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec | None:
    if not section.values:
        return None  # The tower of transformers' defaults fits one size of decoder only.
    hub.only(section, deepstack_visual_indexes=[])
    return table_tower(section, text)


def _flat(fields: Fields) -> Fields:
    """The fields of a decoder alone, whose file names the whole model's class."""
    return fields.without(VISION, *ABOUT_PICTURES)


QWEN3_5_VISION = VisionFamily(
    "qwen3_5",
    ("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"),
    "Qwen3.5, Qwen3.6",
    {"qwen3_5_text": _half(QWEN3_5), "qwen3_5_moe_text": _half(QWEN3_5_MOE)},
    _read,
    usual="qwen3_5_text",
    flat=_flat,
    harmless=frozenset({"language_model_only"}),
    pictures=merged_patches,
    videos=STAMPED,
    hub_names=QWEN,
)
