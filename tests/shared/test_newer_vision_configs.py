"""config.json of models of 2025 and 2026 that see, as a stranger may write it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.prepare.hub_config import read_config
from tests.shared.releases.reading import RELEASES

MODELS: dict[str, dict[str, Any]] = {
    "lighton-ocr": RELEASES["lightonai/LightOnOCR-1B-1025"]["config"],
}


def read(model: str, **changes: Any) -> ModelConfig:
    """changes: of nested values, `vision_config__depth=3`."""
    values = copy.deepcopy(MODELS[model])
    for path, value in changes.items():
        *sections, key = path.split("__")
        section = values
        for each in sections:
            section = section[each]
        section[key] = value
    return read_config(Fields(values, model))


def test_what_they_are_made_of() -> None:
    lighton = read("lighton-ocr")
    assert lighton.vision is not None
    assert (lighton.vision.tower.num_layers, lighton.vision.patches_in_row) == (24, 4)
    assert lighton.tie_word_embeddings


@pytest.mark.parametrize(
    ("model", "changes", "named"),
    [
        ("lighton-ocr", {"projector_hidden_act": "silu"}, "projector_hidden_act"),
        ("lighton-ocr", {"vision_feature_layer": -2}, "vision_feature_layer"),
        ("lighton-ocr", {"spatial_merge_size": 0}, "spatial_merge_size"),
        ("lighton-ocr", {"vision_config__model_type": "siglip_vision_model"}, "pixtral is"),
        ("lighton-ocr", {"text_config__model_type": "llama"}, "qwen3 are"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    model: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read(model, **changes)
