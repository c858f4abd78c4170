"""config.json of models of 2025 and 2026 that see, as a stranger may write it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.tower_spec import LearnedPositions
from penstock.prepare.hub_config import read_config
from tests.shared.releases.reading import RELEASES

FROM_MEMORY: dict[str, dict[str, Any]] = {
    "lfm2-vl-450m": {
        "architectures": ["Lfm2VlForConditionalGeneration"],
        "do_image_splitting": True,
        "downsample_factor": 2,
        "encoder_patch_size": 16,
        "image_token_id": 396,
        "max_image_tokens": 256,
        "max_num_patches": 1024,
        "max_pixels_tolerance": 2.0,
        "max_tiles": 10,
        "min_image_tokens": 64,
        "min_tiles": 2,
        "model_type": "lfm2_vl",
        "projector_bias": True,
        "projector_hidden_act": "gelu",
        "projector_hidden_size": 2560,
        "projector_use_layernorm": True,
        "text_config": {
            "architectures": ["Lfm2ForCausalLM"],
            "block_auto_adjust_ff_dim": True,
            "block_dim": 1024,
            "block_ff_dim": 6656,
            "block_ffn_dim_multiplier": 1.0,
            "block_multiple_of": 256,
            "block_norm_eps": 1e-05,
            "block_use_swiglu": True,
            "conv_L_cache": 3,
            "conv_bias": False,
            "conv_dim": 1024,
            "full_attn_idxs": [2, 5, 8, 10, 12, 14],
            "hidden_size": 1024,
            "max_position_embeddings": 128000,
            "model_type": "lfm2",
            "norm_eps": 1e-05,
            "num_attention_heads": 16,
            "num_heads": 16,
            "num_hidden_layers": 16,
            "num_key_value_heads": 8,
            "rope_theta": 1000000.0,
            "vocab_size": 65536,
        },
        "tile_size": 512,
        "use_image_special_tokens": True,
        "use_thumbnail": True,
        "vision_config": {
            "attention_dropout": 0.0,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 768,
            "intermediate_size": 3072,
            "layer_norm_eps": 1e-06,
            "model_type": "siglip2_vision_model",
            "num_attention_heads": 12,
            "num_channels": 3,
            "num_hidden_layers": 12,
            "num_patches": 256,
            "patch_size": 16,
            "vision_use_head": False,
        },
        "vision_feature_layer": -1,
    },
}
"""What releases are known to have, where no copy of their file could be had."""
MODELS: dict[str, dict[str, Any]] = {
    "lighton-ocr": RELEASES["lightonai/LightOnOCR-1B-1025"]["config"],
} | FROM_MEMORY


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
    lfm = read("lfm2-vl-450m")
    assert lfm.vision is not None
    assert lfm.vision.tower.positions == LearnedPositions(side=16, stretched=True)
    assert (lfm.vision.patches_in_row, lfm.vision.image_size) == (4, None)
    assert [lfm.layer(number).recurrent is None for number in (1, 2)] == [False, True]


@pytest.mark.parametrize(
    ("model", "changes", "named"),
    [
        ("lighton-ocr", {"projector_hidden_act": "silu"}, "projector_hidden_act"),
        ("lighton-ocr", {"vision_feature_layer": -2}, "vision_feature_layer"),
        ("lighton-ocr", {"spatial_merge_size": 0}, "spatial_merge_size"),
        ("lighton-ocr", {"vision_config__model_type": "siglip_vision_model"}, "pixtral is"),
        ("lighton-ocr", {"text_config__model_type": "llama"}, "qwen3 are"),
        ("lfm2-vl-450m", {"downsample_factor": 10**9}, "downsample_factor"),
        ("lfm2-vl-450m", {"projector_hidden_size": 10**12}, "projector_hidden_size"),
        ("lfm2-vl-450m", {"projector_hidden_act": "silu"}, "projector_hidden_act"),
        ("lfm2-vl-450m", {"vision_config__num_patches": 255}, "num_patches"),
        ("lfm2-vl-450m", {"vision_config__num_patches": 10**12}, "num_patches"),
        ("lfm2-vl-450m", {"vision_config__model_type": "clip_vision_model"}, "siglip2"),
        ("lfm2-vl-450m", {"text_config__model_type": "llama"}, "lfm2, lfm2_moe are"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    model: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read(model, **changes)
