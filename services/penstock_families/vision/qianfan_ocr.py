"""Qianfan-OCR in the format of transformers: InternVL's tower and projector, and Qwen 3.

Source: Baidu, "Qianfan-OCR", 2026.
"""

from __future__ import annotations

import msgspec

from penstock.families.hub_defaults import QWEN2_DEFAULTS
from penstock.families.media_tokens import MediaTokens
from penstock.families.qwen3 import QWEN3
from penstock.families.tower_names import IN_BLOCK, under
from penstock.families.vision import internvl
from penstock.families.vision.image_processor import ImageSettings
from penstock.families.vision.internvl import read_vision
from penstock.families.vision.reading import TextHalf, VisionFamily
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.media_facts import KindFacts
from penstock.model.tower_spec import VisionSpec


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    section.ignore("drop_path_rate")  # of training
    return read_vision(fields, section.completed(attention_bias=True), text)


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """InternVL's, but for what its template writes."""
    found = internvl.pictures(settings, config, tokens)
    return msgspec.structs.replace(found, placeholder="<image>")


NAMES = under(
    "vision_model",
    {
        "embeddings": "",
        **under("encoder.layers.*", IN_BLOCK | {"ls1": "scale1", "ls2": "scale2"}, "layers.*"),
    },
) | under("mlp1", {"0": "norm", "1": "1", "3": "2"}, "projector")

QIANFAN_OCR = VisionFamily(
    "qianfan_ocr",
    ("QianfanOCRForConditionalGeneration",),
    "Qianfan-OCR",
    {"qwen3": TextHalf(QWEN3, QWEN2_DEFAULTS)},
    _read,
    usual="qwen3",
    harmless=frozenset({"image_seq_length"}),
    pictures=pictures,
    hub_names=NAMES,
)
