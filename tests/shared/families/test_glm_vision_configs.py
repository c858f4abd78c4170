"""config.json of GLM's models that see, written from memory of the releases: none could be had."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.projector_spec import GatedMergerProjector
from penstock.model.tower_spec import RotaryPositions
from penstock.prepare.hub_config import read_config

TEXT: dict[str, Any] = {
    "attention_bias": True,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "max_position_embeddings": 65536,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"mrope_section": [8, 12, 12], "rope_type": "default"},
    "rope_theta": 10000.0,
    "use_cache": True,
}
TOWER: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "depth": 24,
    "hidden_act": "silu",
    "hidden_size": 1536,
    "image_size": 336,
    "in_channels": 3,
    "initializer_range": 0.02,
    "num_heads": 12,
    "out_hidden_size": 4096,
    "patch_size": 14,
    "rms_norm_eps": 1e-05,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
IDS = {
    "image_end_token_id": 151340,
    "image_start_token_id": 151339,
    "image_token_id": 151343,
    "tie_word_embeddings": False,
    "video_end_token_id": 151342,
    "video_start_token_id": 151341,
    "video_token_id": 151344,
}
RELEASES: dict[str, dict[str, Any]] = {
    "glm-4.1v-9b": IDS
    | {
        "architectures": ["Glm4vForConditionalGeneration"],
        "model_type": "glm4v",
        "text_config": TEXT
        | {
            "intermediate_size": 13696,
            "model_type": "glm4v_text",
            "num_attention_heads": 32,
            "num_hidden_layers": 40,
            "num_key_value_heads": 2,
            "vocab_size": 151552,
        },
        "vision_config": TOWER | {"intermediate_size": 13696, "model_type": "glm4v_vision"},
    },
    "glm-4.5v": IDS
    | {
        "architectures": ["Glm4vMoeForConditionalGeneration"],
        "model_type": "glm4v_moe",
        "text_config": TEXT
        | {
            "first_k_dense_replace": 1,
            "head_dim": 128,
            "intermediate_size": 10944,
            "model_type": "glm4v_moe_text",
            "moe_intermediate_size": 1408,
            "n_group": 1,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_attention_heads": 96,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 46,
            "num_key_value_heads": 8,
            "num_nextn_predict_layers": 1,
            "routed_scaling_factor": 1.0,
            "topk_group": 1,
            "use_qk_norm": False,
            "vocab_size": 151552,
        },
        "vision_config": TOWER | {"intermediate_size": 10944, "model_type": "glm4v_moe_vision"},
    },
    "glm-ocr": IDS
    | {
        "architectures": ["GlmOcrForConditionalGeneration"],
        "model_type": "glm_ocr",
        "text_config": {
            "attention_bias": False,
            "head_dim": 128,
            "hidden_size": 1536,
            "intermediate_size": 4608,
            "max_position_embeddings": 131072,
            "model_type": "glm_ocr_text",
            "num_attention_heads": 16,
            "num_hidden_layers": 16,
            "num_key_value_heads": 8,
            "num_nextn_predict_layers": 1,
            "rms_norm_eps": 1e-05,
            "rope_parameters": {
                "mrope_section": [16, 24, 24],
                "partial_rotary_factor": 1.0,
                "rope_theta": 10000,
                "rope_type": "default",
            },
            "vocab_size": 59392,
        },
        "vision_config": TOWER
        | {
            "attention_bias": True,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "model_type": "glm_ocr_vision",
            "num_heads": 16,
            "out_hidden_size": 1536,
        },
    },
}


def read(model: str, **changes: Any) -> ModelConfig:
    """changes: of nested values, `vision_config__depth=3`."""
    values = copy.deepcopy(RELEASES[model])
    for path, value in changes.items():
        *sections, key = path.split("__")
        section = values
        for each in sections:
            section = section[each]
        section[key] = value
    return read_config(Fields(values, model))


def test_what_releases_are_made_of() -> None:
    dense, experts, ocr = (read(model) for model in RELEASES)
    assert (dense.architecture, experts.architecture, ocr.architecture) == (
        "glm4",
        "glm4_moe",
        "glm4",
    )
    assert dense.vision is not None
    assert dense.vision.tower == experts.vision.tower  # type: ignore[union-attr]
    assert dense.vision.tower.positions == RotaryPositions(table=24, cubic=True)
    assert dense.vision.tower.intermediate_size == 4096
    assert isinstance(dense.vision.projector, GatedMergerProjector)
    assert dense.vision.projector.inner == 13696
    assert dense.ropes[0].axes == (0,) * 8 + (1,) * 12 + (2,) * 12
    assert experts.layers[1].attention.qkv_bias
    assert experts.layers[1].attention.norm == "none"
    assert ocr.vision is not None
    assert ocr.vision.tower.positions == RotaryPositions()
    assert (ocr.vision.tower.head_norms, ocr.vision.tower.bias) == (True, True)
    assert ocr.vision.projector.inner == 3 * 1536  # type: ignore[union-attr]
    assert (ocr.ropes[0].dims, ocr.layers[0].attention.qkv_bias) == (128, False)


@pytest.mark.parametrize(
    ("model", "changes", "named"),
    [
        ("glm-4.1v-9b", {"vision_config__image_size": 10**6}, "image_size"),
        ("glm-4.1v-9b", {"vision_config__image_size": [336, 336]}, "image_size"),
        ("glm-4.1v-9b", {"vision_config__intermediate_size": 10**9}, "intermediate_size"),
        ("glm-4.1v-9b", {"vision_config__out_hidden_size": 1}, "out_hidden_size"),
        ("glm-4.1v-9b", {"vision_config__hidden_act": "tanh"}, "hidden_act"),
        ("glm-4.1v-9b", {"vision_config__spatial_merge_size": 99}, "spatial_merge_size"),
        ("glm-4.1v-9b", {"text_config__rope_scaling": {"mrope_section": [8, 12]}}, "mrope_section"),
        ("glm-4.1v-9b", {"text_config__model_type": "glm4"}, "glm4v_text, glm4v_moe_text"),
        ("glm-ocr", {"vision_config__num_heads": 7}, "heads"),
    ],
)
def test_a_hostile_tower_is_refused_by_name(
    model: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read(model, **changes)
