"""config.json of models that see: as releases have it, and as a stranger may write it."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.mechanisms import VISION, mechanisms
from penstock.model.tower_spec import LearnedPositions, RotaryPositions, WindowSpec
from penstock.prepare.hub_config import read_config
from tests.shared.families.release_configs import releases
from tests.shared.families.test_real_configs import CONFIGS
from tests.shared.releases.reading import RELEASES

QWEN_VL = releases("qwen_vl") | {
    "qwen3.5-35b-a3b": RELEASES["Qwen/Qwen3.5-35B-A3B"]["config"],
    "qwen3.6-27b": RELEASES["nvidia/Qwen3.6-27B-NVFP4"]["config"],
}
OTHERS = releases("vision")

USUAL = {"torch_dtype": "bfloat16", "transformers_version": "4.46.0", "use_cache": True}
RELEASES: dict[str, dict[str, Any]] = QWEN_VL | OTHERS


def read(model: str, *, language_model_only: bool = False, **changes: Any) -> ModelConfig:
    """changes: of nested values, `vision_config__depth=3`."""
    values = copy.deepcopy(USUAL | RELEASES[model])
    for path, value in changes.items():
        *sections, key = path.split("__")
        section = values
        for each in sections:
            section = section[each]
        section[key] = value
    return read_config(Fields(values, model), language_model_only=language_model_only)


@pytest.mark.parametrize("model", RELEASES)
def test_a_release_sees(model: str) -> None:
    config = read(model)
    assert config.vision is not None
    assert VISION in mechanisms(config)
    text = read(model, language_model_only=True)
    assert text.vision is None
    assert VISION not in mechanisms(text)
    assert msgspec.structs.replace(config, vision=None) == text
    encoded = msgspec.json.encode(config)
    assert msgspec.json.decode(encoded, type=ModelConfig) == config


def test_what_releases_are_made_of() -> None:
    llava, qwen = read("llava-1.5-7b"), read("qwen2.5-vl-3b")
    assert (llava.hidden_size, llava.num_layers, llava.num_kv_heads) == (4096, 32, 32)
    assert llava.vision is not None
    assert llava.vision.tower.num_layers == 23, "of 24; the last one's output isn't taken"
    assert llava.vision.tower.positions == LearnedPositions(side=24)
    assert qwen.ropes[0].sections == (16, 24, 24)
    assert qwen.vision is not None
    assert qwen.vision.tower.windows == WindowSpec(side=8, whole=(7, 15, 23, 31))
    third = read("qwen3-vl-4b")
    assert third.vision is not None
    assert third.vision.tower.positions == RotaryPositions(table=48)
    assert (third.vision.deepstack_layers, third.vision.row_width(2560)) == ((5, 11, 17), 4 * 2560)
    assert third.ropes[0].axes == (0, 1, 2) * 20 + (0,) * 4
    assert qwen.ropes[0].axes == (0,) * 16 + (1,) * 24 + (2,) * 24
    experts = read("qwen3-vl-30b-a3b").layers[0].feed_forward.experts
    assert experts is not None
    assert (experts.count, experts.active, experts.inner) == (128, 8, 768)
    newer = read("qwen3.6-27b")
    assert newer.vision is not None
    assert newer.vision.tower == read("qwen3.5-35b-a3b").vision.tower  # type: ignore[union-attr]
    assert (newer.vision.row_width(5120), newer.vision.patches_in_row) == (5120, 4)
    assert newer.ropes[0].axes == (0, 1, 2) * 10 + (0, 1)
    assert sum(layer.recurrent is not None for layer in newer.layers) == 48
    intern, mistral, one = (
        read(model).vision
        for model in ("internvl3-1b", "mistral-small-3.1", "llava-onevision-0.5b")
    )
    assert intern is not None
    assert (intern.patches_in_row, intern.image_size) == (4, 448)
    assert mistral is not None
    assert mistral.tower.positions == RotaryPositions(alternating=True)
    assert one is not None
    assert (one.tower.num_layers, one.patches_in_row) == (26, 8)
    smol, gemma = read("smolvlm-256m").vision, read("gemma-3-4b").vision
    assert smol is not None
    assert (smol.patches_in_row, smol.image_size) == (16, None)
    assert gemma is not None
    assert (gemma.patches_in_row, gemma.spans_whole) == (16, True)


@pytest.mark.parametrize(
    ("model", "changes", "named"),
    [
        ("llava-1.5-7b", {"vision_config__hidden_size": 10**9}, "hidden_size"),
        ("llava-1.5-7b", {"vision_config__intermediate_size": 10**12}, "intermediate_size"),
        ("llava-1.5-7b", {"vision_config__num_hidden_layers": 10**9}, "num_layers"),
        ("llava-1.5-7b", {"vision_config__num_attention_heads": 7}, "heads"),
        ("llava-1.5-7b", {"vision_config__num_attention_heads": 0}, "num_attention_heads"),
        ("llava-1.5-7b", {"vision_config__image_size": 10**6}, "image_size"),
        ("llava-1.5-7b", {"vision_config__image_size": 7}, "image_size"),
        ("llava-1.5-7b", {"vision_config__image_size": [336, 336]}, "image_size"),
        ("llava-1.5-7b", {"vision_config__patch_size": 0}, "patch_size"),
        ("llava-1.5-7b", {"vision_config__num_channels": 1}, "num_channels"),
        ("llava-1.5-7b", {"vision_config__hidden_act": "tanh"}, "hidden_act"),
        ("llava-1.5-7b", {"vision_config__layer_norm_eps": "small"}, "layer_norm_eps"),
        ("llava-1.5-7b", {"vision_config__model_type": "dinov2"}, "model_type"),
        ("llava-1.5-7b", {"vision_feature_layer": [-2, -5]}, "vision_feature_layer"),
        ("llava-1.5-7b", {"vision_feature_layer": 25}, "layer 25"),
        ("llava-1.5-7b", {"vision_feature_select_strategy": "some"}, "select_strategy"),
        ("llava-1.5-7b", {"projector_hidden_act": "silu"}, "projector_hidden_act"),
        ("llava-1.5-7b", {"text_config__model_type": "opt"}, "llama, mistral, qwen2"),
        ("llava-1.5-7b", {"vision_config": [1]}, "vision_config"),
        ("smolvlm-256m", {"scale_factor": 5}, "scale_factor"),
        ("smolvlm-256m", {"scale_factor": 10**9}, "scale_factor"),
        ("qwen2-vl-2b", {"rope_scaling__mrope_section": [16, 24]}, "mrope_section"),
        ("qwen2-vl-2b", {"rope_scaling__mrope_section": [-8, 48, 24]}, "mrope_section"),
        ("qwen2-vl-2b", {"rope_scaling__mrope_section": [1] * 10**5}, "mrope_section"),
        ("qwen2-vl-2b", {"vision_config__mlp_ratio": 10**9}, "mlp_ratio"),
        ("qwen2-vl-2b", {"vision_config__hidden_size": 1537}, "hidden_size"),
        ("qwen2-vl-2b", {"vision_config__num_heads": 640}, "multiple of 4"),
        ("qwen2-vl-2b", {"vision_config__spatial_merge_size": 999}, "spatial_merge_size"),
        ("qwen2-vl-2b", {"vision_config__temporal_patch_size": 10**9}, "temporal_patch_size"),
        ("qwen2.5-vl-3b", {"vision_config__window_size": 10}, "window_size"),
        ("qwen2.5-vl-3b", {"vision_config__fullatt_block_indexes": [32]}, "fullatt_block"),
        ("qwen2.5-vl-3b", {"vision_config__out_hidden_size": 1}, "out_hidden_size"),
        ("qwen3-vl-4b", {"vision_config__num_position_embeddings": 2300}, "num_position_emb"),
        ("qwen3-vl-4b", {"vision_config__num_position_embeddings": 10**12}, "num_position_emb"),
        ("qwen3-vl-4b", {"vision_config__deepstack_visual_indexes": [24]}, "deepstack"),
        ("qwen3-vl-4b", {"vision_config__deepstack_visual_indexes": [9, 5]}, "deepstack"),
        ("qwen3-vl-4b", {"text_config__num_hidden_layers": 2}, "deepstack"),
        ("qwen3-vl-4b", {"text_config__rope_scaling": {"mrope_interleaved": False}}, "interleaved"),
        ("qwen3-vl-4b", {"vision_config__out_hidden_size": 1}, "out_hidden_size"),
        ("qwen3.6-27b", {"vision_config__deepstack_visual_indexes": [8]}, "deepstack"),
        ("qwen3.6-27b", {"vision_config__out_hidden_size": 1}, "out_hidden_size"),
        (
            "qwen3.6-27b",
            {"text_config__rope_parameters__mrope_section": [24, 20, 20]},
            "mrope_section",
        ),
        ("internvl3-1b", {"downsample_ratio": 0.3}, "downsample_ratio"),
        ("internvl3-1b", {"downsample_ratio": -1}, "downsample_ratio"),
        ("internvl3-1b", {"vision_config__image_size": [448, 224]}, "image_size"),
        ("internvl3-1b", {"vision_config__patch_size": [10**9, 10**9]}, "patch_size"),
        ("internvl3-1b", {"vision_config__norm_type": "batch_norm"}, "norm_type"),
        ("internvl3-1b", {"vision_feature_select_strategy": "full"}, "select_strategy"),
        ("pixtral-12b", {"vision_feature_select_strategy": "default"}, "full is served"),
        ("pixtral-12b", {"vision_config__head_dim": 32}, "head_dim"),
        ("mistral-small-3.1", {"vision_config__hidden_size": 10**12}, "hidden_size"),
        ("mistral-small-3.1", {"spatial_merge_size": 0}, "spatial_merge_size"),
        ("mistral-small-3.1", {"vision_config__model_type": "clip_vision_model"}, "pixtral is"),
        ("llava-onevision-0.5b", {"vision_aspect_ratio": "pad"}, "vision_aspect_ratio"),
        ("llava-onevision-0.5b", {"image_grid_pinpoints": [[384, 10**9]]}, "pinpoints"),
        ("llava-onevision-0.5b", {"image_grid_pinpoints": [[384, 500]]}, "pinpoints"),
        ("llava-onevision-0.5b", {"image_grid_pinpoints": "all"}, "pinpoints"),
        ("gemma-3-4b", {"mm_tokens_per_image": 250}, "mm_tokens_per_image"),
        ("gemma-3-4b", {"mm_tokens_per_image": 10**12}, "mm_tokens_per_image"),
        ("gemma-3-4b", {"mm_tokens_per_image": 0}, "mm_tokens_per_image"),
    ],
)
def test_a_hostile_tower_is_refused_by_name(
    model: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read(model, **changes)


DECODER = "Gemma3nForCausalLM"


def test_a_tower_that_nobody_knows_is_left_out() -> None:
    """The text half is served without it."""
    values = CONFIGS["gemma-3n-e2b"]
    hostile = values | {"vision_config": {"hidden_size": 10**12}, "architectures": [DECODER]}
    assert read_config(Fields(hostile, "gemma 3n")).vision is None
