"""config.json of DeepSeek-OCR and DeepSeek-OCR 2, written from memory of the releases: no copy of
them could be had."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.document_spec import DocumentProjector, PageProjector
from penstock.model.tower_spec import WindowSpec
from penstock.prepare.hub_config import read_config

DECODER: dict[str, Any] = {
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_size": 1280,
    "intermediate_size": 6848,
    "max_position_embeddings": 8192,
    "moe_intermediate_size": 896,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_attention_heads": 10,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 12,
    "num_key_value_heads": 10,
    "topk_group": 1,
    "topk_method": "greedy",
    "vocab_size": 129280,
}
SAM: dict[str, Any] = {
    "downsample_channels": [512, 896],
    "global_attn_indexes": [2, 5, 8, 11],
}
FILES: dict[str, dict[str, Any]] = {
    "transformers": {
        "architectures": ["DeepseekOcr2ForConditionalGeneration"],
        "image_token_id": 128815,
        "model_type": "deepseek_ocr2",
        "text_config": DECODER
        | {
            "mlp_layer_types": ["dense"] + ["sparse"] * 11,
            "model_type": "deepseek_ocr2_text",
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        "vision_config": {
            "encoder_config": {
                "hidden_size": 896,
                "intermediate_size": 4864,
                "max_position_embeddings": 131072,
                "model_type": "deepseek_ocr2_encoder",
                "num_attention_heads": 14,
                "num_hidden_layers": 24,
                "num_key_value_heads": 2,
                "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
            },
            "model_type": "deepseek_ocr2_vision",
            "sam_config": SAM
            | {
                "image_size": 1024,
                "model_type": "deepseek_ocr2_sam_vision_model",
                "patch_size": 16,
                "window_size": 14,
            },
        },
    },
    "makers": {
        "architectures": ["DeepseekOCR2ForCausalLM"],
        "candidate_resolutions": [[1024, 1024]],
        "global_view_pos": "head",
        "language_config": DECODER
        | {
            "architectures": ["DeepseekV2ForCausalLM"],
            "first_k_dense_replace": 1,
            "kv_lora_rank": None,
            "lm_head": True,
            "q_lora_rank": None,
            "qk_nope_head_dim": 0,
            "qk_rope_head_dim": 0,
            "rm_head": False,
            "torch_dtype": "bfloat16",
            "use_mla": False,
            "v_head_dim": 0,
        },
        "model_type": "deepseek_vl_v2",
        "projector_config": {
            "input_dim": 896,
            "model_type": "mlp_projector",
            "n_embed": 1280,
            "projector_type": "linear",
        },
        "tile_tag": "2D",
        "torch_dtype": "bfloat16",
        "vision_config": {
            "image_size": 1024,
            "mlp_ratio": 3.7362,
            "model_name": "deepencoderv2",
            "model_type": "vision",
            "width": {
                "qwen2-0-5b": {"dim": 896},
                "sam_vit_b": SAM | {"heads": 12, "layers": 12, "width": 768},
            },
        },
    },
}


FILES["first"] = FILES["makers"] | {
    "architectures": ["DeepseekOCRForCausalLM"],
    "projector_config": {"input_dim": 2048, "n_embed": 1280, "projector_type": "linear"},
    "vision_config": FILES["makers"]["vision_config"]
    | {
        "model_name": "deeplip_b_l",
        "width": {
            "clip-l-14-224": {
                "heads": 16,
                "image_size": 224,
                "layers": 24,
                "patch_size": 14,
                "width": 1024,
            },
            "sam_vit_b": {
                "downsample_channels": [512, 1024],
                "global_attn_indexes": [2, 5, 8, 11],
                "heads": 12,
                "layers": 12,
                "width": 768,
            },
        },
    },
}


def read(file: str, path: str = "", value: Any = None) -> ModelConfig:
    """path, value: of a nested value that is changed, `vision_config.depth`."""
    values = copy.deepcopy(FILES[file])
    if path:
        *sections, key = path.split(".")
        section = values
        for each in sections:
            section = section[each]
        section[key] = value
    return read_config(Fields(values, file))


def test_what_it_is_made_of() -> None:
    found = read("transformers")
    assert found.vision is not None
    assert found.vision.tower.windows == WindowSpec(side=14, whole=(2, 5, 8, 11), grid=64)
    assert isinstance(found.vision.projector, DocumentProjector)
    assert found.vision.projector.queries == (144, 256)
    assert found.vision.projector.layers.num_layers == 24
    assert [layer.feed_forward.experts is None for layer in found.layers] == [True] + [False] * 11
    assert read("makers") == found
    first = read("first")
    assert first.vision is not None
    assert first.vision.tower == found.vision.tower
    assert isinstance(first.vision.projector, PageProjector)
    layers = first.vision.projector.layers
    assert (layers.hidden_size, layers.intermediate_size, layers.side) == (1024, 4096, 16)
    assert (layers.num_layers, layers.activation) == (24, "quick_gelu")
    assert first.layers == found.layers


IN_CLIP = "vision_config.width.clip-l-14-224"
IN_SAM, IN_QUERIES = "vision_config.sam_config", "vision_config.encoder_config"


@pytest.mark.parametrize(
    ("file", "path", "value", "named"),
    [
        ("transformers", f"{IN_SAM}.window_size", 0, "window_size"),
        ("transformers", f"{IN_SAM}.global_attn_indexes", [12], "global_attn_indexes"),
        ("transformers", f"{IN_SAM}.use_rel_pos", False, "use_rel_pos"),
        ("transformers", f"{IN_SAM}.use_abs_pos", False, "use_abs_pos"),
        ("transformers", f"{IN_SAM}.image_size", 10**9, "image_size"),
        ("transformers", f"{IN_SAM}.mlp_ratio", 1e300, "mlp_dim"),
        ("transformers", f"{IN_SAM}.downsample_channels", [512, 512], "end with 896"),
        ("transformers", f"{IN_SAM}.downsample_channels", [0, 896], "downsample_channels"),
        ("transformers", f"{IN_SAM}.output_channels", 10**9, "output_channels"),
        ("transformers", f"{IN_QUERIES}.num_key_value_heads", 3, "a divisor of 14"),
        ("transformers", f"{IN_QUERIES}.head_dim", 32, "head_dim"),
        ("transformers", f"{IN_QUERIES}.use_sliding_window", True, "use_sliding_window"),
        (
            "transformers",
            f"{IN_QUERIES}.rope_parameters",
            {"rope_type": "linear", "factor": 2.0},
            "stretched",
        ),
        ("transformers", "text_config.topk_method", "noaux_tc", "topk_method"),
        ("transformers", "text_config.num_experts_per_tok", 65, "num_experts_per_tok"),
        ("transformers", "text_config.mlp_bias", True, "mlp_bias"),
        ("transformers", "text_config.model_type", "llama", "deepseek_ocr2_text are"),
        ("makers", "projector_config.projector_type", "mlp_gelu", "projector_type"),
        ("makers", "language_config.use_mla", True, "use_mla"),
        ("makers", "language_config.norm_topk_prob", True, "norm_topk_prob"),
        ("first", "tile_tag", "1D", "tile_tag"),
        ("first", "projector_config.projector_type", "mlp_gelu", "projector_type"),
        ("first", f"{IN_CLIP}.layers", 10**9, "layers"),
        ("first", f"{IN_CLIP}.heads", 7, "heads"),
        ("first", f"{IN_CLIP}.width", 10**9, "width"),
        ("first", f"{IN_CLIP}.image_size", 10**6, "image_size"),
        ("first", "vision_config.width.sam_vit_b.downsample_channels", [512, 896], "with 1024"),
        ("makers", "vision_config.width.sam_vit_b.layers", 10**9, "num_layers"),
    ],
)
def test_unserved_settings_of_document_models_are_named(
    file: str, path: str, value: Any, named: str
) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read(file, path, value)
