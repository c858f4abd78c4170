"""Gemma 4 12B, its text half: Gemma 4's dense layers without inputs of their own. Its vision part
is in penstock.families.vision.gemma4_unified, its audio part in
penstock.families.gemma4_unified_audio.

Source: transformers' Gemma4UnifiedTextConfig.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from penstock.families import hub_reading as hub
from penstock.families.gemma4 import GEMMA4
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig

LAYER_INPUTS = "hidden_size_per_layer_input"
NAME = "gemma4_unified"


def _hub(fields: Fields) -> ModelConfig:
    hub.only(fields, enable_moe_block=False, **{LAYER_INPUTS: 0})
    config = GEMMA4.read_hub(fields.replaced({LAYER_INPUTS: 0}))
    return msgspec.structs.replace(config, architecture=NAME)


GEMMA4_UNIFIED = replace(
    GEMMA4,
    name=NAME,
    hub_classes=("Gemma4UnifiedForCausalLM", "Gemma4UnifiedForConditionalGeneration"),
    known_as="Gemma 4 12B (text)",
    read_hub=_hub,
    gguf=None,
    read_gguf=None,
)
