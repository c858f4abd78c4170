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
from tests.shared.releases.reading import RELEASES as OF_RELEASES
from tests.shared.test_real_configs import CONFIGS

USUAL = {"torch_dtype": "bfloat16", "transformers_version": "4.46.0", "use_cache": True}
QWEN: dict[str, Any] = {
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "vision_token_id": 151654,
    "image_token_id": 151655,
    "video_token_id": 151656,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3: dict[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "dtype": "bfloat16",
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 262144,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "mrope_interleaved": True,
        "mrope_section": [24, 20, 20],
        "rope_type": "default",
    },
    "rope_theta": 5000000,
    "use_cache": True,
    "vocab_size": 151936,
}
QWEN3_TOWER: dict[str, Any] = {
    "hidden_act": "gelu_pytorch_tanh",
    "in_channels": 3,
    "initializer_range": 0.02,
    "num_heads": 16,
    "num_position_embeddings": 2304,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
RELEASES: dict[str, dict[str, Any]] = {
    "llava-1.5-7b": {
        "architectures": ["LlavaForConditionalGeneration"],
        "ignore_index": -100,
        "image_seq_length": 576,
        "image_token_index": 32000,
        "model_type": "llava",
        "pad_token_id": 32001,
        "projector_hidden_act": "gelu",
        "text_config": {
            "_name_or_path": "lmsys/vicuna-7b-v1.5",
            "architectures": ["LlamaForCausalLM"],
            "max_position_embeddings": 4096,
            "model_type": "llama",
            "rms_norm_eps": 1e-05,
            "torch_dtype": "float16",
            "vocab_size": 32064,
        },
        "tie_word_embeddings": False,
        "vision_config": {
            "hidden_size": 1024,
            "image_size": 336,
            "intermediate_size": 4096,
            "model_type": "clip_vision_model",
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
            "patch_size": 14,
            "projection_dim": 768,
            "vocab_size": 32000,
        },
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "vocab_size": 32064,
    },
    "llama-4-scout": {
        "architectures": ["Llama4ForConditionalGeneration"],
        "boi_token_index": 200080,
        "eoi_token_index": 200081,
        "image_token_index": 200092,
        "model_type": "llama4",
        "text_config": {
            "_attn_implementation_autoset": True,
            "attention_bias": False,
            "attention_chunk_size": 8192,
            "attention_dropout": 0.0,
            "bos_token_id": 200000,
            "cache_implementation": "hybrid",
            "eos_token_id": [200001, 200007, 200008],
            "for_llm_compressor": False,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 5120,
            "initializer_range": 0.02,
            "interleave_moe_layer_step": 1,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16384,
            "max_position_embeddings": 262144,
            "model_type": "llama4_text",
            "no_rope_layers": [],
            "num_attention_heads": 40,
            "num_experts_per_tok": 1,
            "num_hidden_layers": 48,
            "num_key_value_heads": 8,
            "num_local_experts": 16,
            "output_router_logits": False,
            "pad_token_id": 200018,
            "rms_norm_eps": 1e-05,
            "rope_scaling": {
                "factor": 16.0,
                "high_freq_factor": 1.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "rope_theta": 500000.0,
            "router_aux_loss_coef": 0.001,
            "router_jitter_noise": 0.0,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "use_qk_norm": True,
            "vocab_size": 202048,
        },
        "vision_config": {
            "attention_dropout": 0.0,
            "hidden_act": "gelu",
            "hidden_size": 1408,
            "image_size": 336,
            "initializer_range": 0.02,
            "intermediate_size": 5632,
            "model_type": "llama4_vision_model",
            "multi_modal_projector_bias": False,
            "norm_eps": 1e-05,
            "num_attention_heads": 16,
            "num_channels": 3,
            "num_hidden_layers": 34,
            "patch_size": 14,
            "pixel_shuffle_ratio": 0.5,
            "projector_dropout": 0.0,
            "projector_input_dim": 4096,
            "projector_output_dim": 4096,
            "rope_theta": 10000,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "default",
            "vision_output_dim": 4096,
        },
    },
    "smolvlm-256m": {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "image_seq_len": 64,
        "image_token_id": 49190,
        "model_type": "idefics3",
        "scale_factor": 4,
        "text_config": {
            "_flash_attn_2_enabled": True,
            "architectures": ["VLlama3ForCausalLM"],
            "head_dim": 64,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "is_llama_config": True,
            "max_position_embeddings": 8192,
            "model_type": "llama",
            "neftune_noise_alpha": 0.0,
            "num_attention_heads": 9,
            "num_hidden_layers": 30,
            "num_key_value_heads": 3,
            "pad_token_id": 2,
            "perceiver_config": {"resampler_depth": 6},
            "pixel_shuffle_factor": 4,
            "qk_layer_norms": False,
            "rms_norm_eps": 1e-05,
            "rope_interleaved": False,
            "rope_theta": 100000,
            "transformers.js_config": {"dtype": {"q4": "q4"}},
            "use_resampler": False,
            "vocab_size": 49280,
        },
        "tie_word_embeddings": False,
        "use_reentrant_checkpointing": False,
        "vision_config": {
            "hidden_size": 768,
            "image_size": 512,
            "initializer_range": 0.02,
            "intermediate_size": 3072,
            "max_image_size": {"longest_edge": 512},
            "model_type": "idefics3_vision",
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
            "patch_size": 16,
            "size": {"longest_edge": 2048},
            "use_base_siglip": False,
        },
        "vocab_size": 49280,
    },
    "qwen2-vl-2b": QWEN
    | {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "max_window_layers": 28,
        "model_type": "qwen2_vl",
        "num_attention_heads": 12,
        "num_hidden_layers": 28,
        "num_key_value_heads": 2,
        "vision_config": {
            "depth": 32,
            "embed_dim": 1280,
            "hidden_size": 1536,
            "in_chans": 3,
            "mlp_ratio": 4,
            "num_heads": 16,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "spatial_patch_size": 14,
            "temporal_patch_size": 2,
        },
    },
    "qwen2.5-vl-3b": QWEN
    | {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "max_window_layers": 70,
        "model_type": "qwen2_5_vl",
        "num_attention_heads": 16,
        "num_hidden_layers": 36,
        "num_key_value_heads": 2,
        "vision_config": {
            "depth": 32,
            "fullatt_block_indexes": [7, 15, 23, 31],
            "hidden_act": "silu",
            "hidden_size": 1280,
            "in_chans": 3,
            "intermediate_size": 3420,
            "num_heads": 16,
            "out_hidden_size": 2048,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "spatial_patch_size": 14,
            "temporal_patch_size": 2,
            "tokens_per_second": 2,
            "window_size": 112,
        },
    },
    "qwen3-vl-4b": {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "image_token_id": 151655,
        "model_type": "qwen3_vl",
        "text_config": QWEN3
        | {
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "model_type": "qwen3_vl_text",
            "num_attention_heads": 32,
            "num_hidden_layers": 36,
            "tie_word_embeddings": True,
        },
        "tie_word_embeddings": True,
        "video_token_id": 151656,
        "vision_config": QWEN3_TOWER
        | {
            "deepstack_visual_indexes": [5, 11, 17],
            "depth": 24,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "model_type": "qwen3_vl",
            "out_hidden_size": 2560,
        },
        "vision_end_token_id": 151653,
        "vision_start_token_id": 151652,
    },
    "qwen3-vl-30b-a3b": {
        "architectures": ["Qwen3VLMoeForConditionalGeneration"],
        "image_token_id": 151655,
        "model_type": "qwen3_vl_moe",
        "text_config": QWEN3
        | {
            "decoder_sparse_step": 1,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "mlp_only_layers": [],
            "model_type": "qwen3_vl_moe_text",
            "moe_intermediate_size": 768,
            "norm_topk_prob": True,
            "num_attention_heads": 32,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 48,
            "num_key_value_heads": 4,
        },
        "tie_word_embeddings": False,
        "video_token_id": 151656,
        "vision_config": QWEN3_TOWER
        | {
            "deepstack_visual_indexes": [8, 16, 24],
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "model_type": "qwen3_vl_moe",
            "out_hidden_size": 2048,
        },
        "vision_end_token_id": 151653,
        "vision_start_token_id": 151652,
    },
    "qwen3.5-35b-a3b": OF_RELEASES["Qwen/Qwen3.5-35B-A3B"]["config"],
    "qwen3.6-27b": OF_RELEASES["nvidia/Qwen3.6-27B-NVFP4"]["config"],
    "internvl3-1b": {
        "architectures": ["InternVLForConditionalGeneration"],
        "downsample_ratio": 0.5,
        "image_seq_length": 256,
        "image_token_id": 151667,
        "model_type": "internvl",
        "projector_hidden_act": "gelu",
        "text_config": {
            "architectures": ["Qwen2ForCausalLM"],
            "bos_token_id": 151643,
            "eos_token_id": 151645,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "max_position_embeddings": 32768,
            "max_window_layers": 70,
            "model_type": "qwen2",
            "num_attention_heads": 14,
            "num_hidden_layers": 24,
            "num_key_value_heads": 2,
            "rope_scaling": {"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"},
            "rope_theta": 1000000.0,
            "vocab_size": 151674,
        },
        "vision_config": {
            "architectures": ["InternVisionModel"],
            "attention_bias": True,
            "hidden_act": "gelu",
            "hidden_size": 1024,
            "image_size": [448, 448],
            "intermediate_size": 4096,
            "layer_norm_eps": 1e-06,
            "layer_scale_init_value": 0.1,
            "model_type": "internvl_vision",
            "norm_type": "layer_norm",
            "num_attention_heads": 16,
            "num_channels": 3,
            "num_hidden_layers": 24,
            "patch_size": [14, 14],
            "projection_dropout": 0.0,
            "use_absolute_position_embeddings": True,
            "use_mask_token": False,
            "use_mean_pooling": True,
            "use_qk_norm": False,
        },
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
    },
    "pixtral-12b": {
        "architectures": ["LlavaForConditionalGeneration"],
        "ignore_index": -100,
        "image_seq_length": 1,
        "image_token_index": 10,
        "model_type": "llava",
        "projector_hidden_act": "gelu",
        "text_config": {
            "head_dim": 128,
            "hidden_size": 5120,
            "intermediate_size": 14336,
            "is_composition": True,
            "max_position_embeddings": 1024000,
            "model_type": "mistral",
            "num_hidden_layers": 40,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05,
            "rope_theta": 1000000000.0,
            "sliding_window": None,
            "vocab_size": 131072,
        },
        "vision_config": {
            "head_dim": 64,
            "hidden_act": "silu",
            "image_size": 1024,
            "is_composition": True,
            "model_type": "pixtral",
            "patch_size": 16,
            "rope_theta": 10000.0,
        },
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    },
    "mistral-small-3.1": {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "image_token_index": 10,
        "model_type": "mistral3",
        "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu",
        "spatial_merge_size": 2,
        "text_config": {
            "attention_dropout": 0.0,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 5120,
            "intermediate_size": 32768,
            "max_position_embeddings": 131072,
            "model_type": "mistral",
            "num_attention_heads": 32,
            "num_hidden_layers": 40,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05,
            "rope_theta": 1000000000.0,
            "sliding_window": None,
            "vocab_size": 131072,
        },
        "vision_config": {
            "attention_dropout": 0.0,
            "head_dim": 64,
            "hidden_act": "silu",
            "hidden_size": 1024,
            "image_size": 1540,
            "initializer_range": 0.02,
            "intermediate_size": 4096,
            "model_type": "pixtral",
            "num_attention_heads": 16,
            "num_channels": 3,
            "num_hidden_layers": 24,
            "patch_size": 14,
            "rope_theta": 10000.0,
        },
        "vision_feature_layer": -1,
    },
    "llava-onevision-0.5b": {
        "architectures": ["LlavaOnevisionForConditionalGeneration"],
        "ignore_index": -100,
        "image_grid_pinpoints": [
            [384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)
        ],
        "image_token_index": 151646,
        "model_type": "llava_onevision",
        "projector_hidden_act": "gelu",
        "text_config": {
            "_name_or_path": "Qwen/Qwen2-0.5B-Instruct",
            "architectures": ["Qwen2ForCausalLM"],
            "bos_token_id": 151643,
            "eos_token_id": 151645,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "max_position_embeddings": 32768,
            "max_window_layers": 24,
            "model_type": "qwen2",
            "num_attention_heads": 14,
            "num_hidden_layers": 24,
            "num_key_value_heads": 2,
            "rope_theta": 1000000.0,
            "vocab_size": 152000,
        },
        "tie_word_embeddings": True,
        "use_image_newline_parameter": True,
        "video_token_index": 151647,
        "vision_aspect_ratio": "anyres_max_9",
        "vision_config": {
            "hidden_size": 1152,
            "image_size": 384,
            "intermediate_size": 4304,
            "model_type": "siglip_vision_model",
            "num_attention_heads": 16,
            "num_hidden_layers": 26,
            "patch_size": 14,
            "vision_use_head": False,
        },
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    },
    "gemma-3-4b": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "boi_token_index": 255999,
        "eoi_token_index": 256000,
        "image_token_index": 262144,
        "initializer_range": 0.02,
        "mm_tokens_per_image": 256,
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "vision_config": {
            "hidden_size": 1152,
            "image_size": 896,
            "intermediate_size": 4304,
            "model_type": "siglip_vision_model",
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
            "patch_size": 14,
            "vision_use_head": False,
        },
    },
}


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


def test_a_tower_that_nobody_knows_is_left_out() -> None:
    """The text half is served without it."""
    values = CONFIGS["gemma-3n-e2b"]
    hostile = values | {"vision_config": {"hidden_size": 10**12}}
    assert read_config(Fields(hostile, "gemma 3n")).vision is None
