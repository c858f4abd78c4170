"""Tiny models that see pictures of any form as patches, Qwen3.5's and GLM-4.1V's relatives, Kimi's,
MiniMax M3 and Mistral Small 4; and windows of them, Step 3.7."""

from __future__ import annotations

from typing import Any

from penstock.forms.overlapping import OverlappingImages
from penstock.forms.patches import PatchImages
from penstock.forms.rows import RowImages
from penstock.forms.windowed import WindowedImages
from tests.worker.models.case_sizes import YARN
from tests.worker.models.step_files import SETTINGS as STEP
from tests.worker.vision.case import (
    COLOURS,
    PLACEHOLDER,
    POSITIONS,
    QWEN3_TOWER,
    QWEN_PATCHES,
    QWEN_TOKENS,
    QWEN_TOWER,
    SECTIONS,
    SEES,
    TEXT,
    WIDE,
    Case,
)
from tests.worker.vision.timed_model import make_timed
from tests.worker.vision.turned_model import make_turned

DELTA: dict[str, Any] = TEXT | {
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "rope_parameters": {
        "rope_type": "default",
        "mrope_section": [2, 1, 1],
        "rope_theta": 100.0,
        "partial_rotary_factor": 0.5,
    },
}
QWEN35_TOWER = {key: value for key, value in QWEN3_TOWER.items() if "deepstack" not in key}
HALF = {"partial_rotary_factor": 0.5}
GLM_TOKENS = {"image_token_id": PLACEHOLDER, "video_token_id": 191}
GLM_TOWER = QWEN_TOWER | {
    "depth": 2,
    "hidden_size": 48,
    "out_hidden_size": 96,
    "intermediate_size": 52,
    "image_size": 24,
}
TIMED_TOWER: dict[str, Any] = SEES | {
    "hidden_size": 40,
    "num_attention_heads": 2,
    "patch_size": 4,
    "rope_parameters": {"rope_type": "axial", "rope_theta": 10_000.0},
    "vision_segment_max_frames": 2,
}
"""Heads have 20 numbers, of which the last two don't turn. GGUF files say no other theta."""
LATENTS: dict[str, Any] = WIDE | {
    "class": "DeepseekV3Config",
    "num_key_value_heads": 6,
    "kv_lora_rank": 32,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 6,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
}
GROWING = YARN | {"llama_4_scaling_beta": 0.2, "original_max_position_embeddings": 16}


def with_moonvit(config: Any) -> Any:
    """Kimi-VL, of the configuration of Kimi K2.5."""
    from tests.worker.vision.moonvit_model import KimiVL

    return KimiVL(config)


def with_pooling(config: Any) -> Any:
    """Molmo 2, of the configuration of LLaVA."""
    from tests.worker.vision.pooled_model import Molmo2

    return Molmo2(config)


CROPPED: dict[str, Any] = SEES | {
    "class": "SiglipVisionConfig",
    "image_size": 12,
    "patch_size": 4,
}
OVERLAPPING = OverlappingImages(
    pixels=COLOURS,
    side=12,
    patch=4,
    pool=(2, 3),
    margins=(1, 0),
    most=2,
    first_token=189,
    whole_begin=193,
    begin=189,
    end=191,
    line_end=192,
)
NEVER_LARGER = PatchImages(
    pixels=COLOURS,
    min_pixels=64,
    max_pixels=4096,
    patch=4,
    merge=2,
    frames=1,
    most_side=64,
)
STEP_TOWER: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 48,
    "patch_size": 4,
    "mlp_ratio": 1.5,
    "initializer_range": 0.2,
    "rope_parameters": {"rope_type": "axial", "rope_theta": 100.0},
}


def step(rope_theta: float, *, bias: bool) -> Case:
    """bias: of the product behind the convolutions."""
    rope = STEP_TOWER["rope_parameters"] | {"rope_theta": rope_theta}
    return Case(
        "Step3p7",
        {
            "text_config": {
                key: value for key, value in (WIDE | STEP).items() if value is not None
            },
            "vision_config": STEP_TOWER | {"rope_parameters": rope},
            "image_token_id": PLACEHOLDER,
            "projector_bias": bias,
        },
        WindowedImages(
            pixels=COLOURS, whole=48, tile=32, longest=640, patch=4, whole_rows=9, tile_rows=4
        ),
        make_turned,
        "Step3p7ForConditionalGeneration",
    )


OF_PATCHES: dict[str, Case] = {
    "qwen3.5": Case(
        "Qwen3_5",
        {"text_config": DELTA, "vision_config": QWEN35_TOWER} | QWEN_TOKENS,
        QWEN_PATCHES,
    ),
    "qwen3.5-moe": Case(
        "Qwen3_5Moe",
        {
            "text_config": DELTA
            | {
                "num_experts": 6,
                "num_experts_per_tok": 3,
                "moe_intermediate_size": 24,
                "shared_expert_intermediate_size": 40,
            },
            "vision_config": QWEN35_TOWER | {"num_position_embeddings": 9, "depth": 2},
        }
        | QWEN_TOKENS,
        QWEN_PATCHES,
    ),
    "glm4v": Case(
        "Glm4v",
        {
            "text_config": WIDE
            | {"rope_parameters": SECTIONS | {"mrope_section": [2, 1, 1]} | HALF},
            "vision_config": GLM_TOWER,
        }
        | GLM_TOKENS,
        QWEN_PATCHES,
    ),
    "glm4v-moe": Case(
        "Glm4vMoe",
        {
            "text_config": TEXT
            | {
                "head_dim": 16,
                "rope_parameters": SECTIONS | {"mrope_section": [2, 1, 1]} | HALF,
                "n_routed_experts": 8,
                "num_experts_per_tok": 3,
                "moe_intermediate_size": 24,
                "n_shared_experts": 1,
                "first_k_dense_replace": 1,
                "routed_scaling_factor": 1.5,
            },
            "vision_config": GLM_TOWER
            | {"out_hidden_size": 72, "attention_bias": True, "image_size": 16},
        }
        | GLM_TOKENS,
        QWEN_PATCHES,
    ),
    "glm4.6v": Case(
        "Glm46V",
        {
            "text_config": WIDE
            | {
                "class": "Glm4vTextConfig",
                "rope_parameters": SECTIONS | {"mrope_section": [2, 1, 1]} | HALF,
            },
            "vision_config": GLM_TOWER | {"class": "Glm4vVisionConfig", "rms_norm_eps": 0.01},
        }
        | GLM_TOKENS,
        QWEN_PATCHES,
    ),
    "minimax-m3": Case(
        "MiniMaxM3VL",
        {
            "text_config": WIDE
            | {
                "head_dim": 16,
                "dense_intermediate_size": 100,
                "intermediate_size": 24,
                "shared_intermediate_size": 24,  # of GGUF files it is that of the others
                "num_local_experts": 6,
                "num_experts_per_tok": 3,
                "mlp_layer_types": ["dense", "sparse", "sparse"],
                "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
                "index_n_heads": 2,
                "index_head_dim": 16,
                "index_block_size": 16,
                "index_topk_blocks": 3,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 100.0,
                    "partial_rotary_factor": 0.5,
                },
                "rotary_dim": 8,
            },
            "vision_config": TIMED_TOWER,
            "image_token_index": PLACEHOLDER,
            "video_token_index": 191,
            "projector_hidden_size": 56,
        },
        QWEN_PATCHES,
        make_timed,
        "MiniMaxM3SparseForConditionalGeneration",
    ),
    "mistral4": Case(
        "Mistral3",
        {
            "text_config": LATENTS | {"class": "Mistral4Config", "rope_parameters": GROWING},
            "vision_config": SEES
            | {
                "class": "PixtralVisionConfig",
                "image_size": 64,
                "patch_size": 4,
                "hidden_act": "silu",
            },
            "image_token_index": PLACEHOLDER,
        },
        RowImages(pixels=COLOURS, longest_edge=64, patch=8),
    ),
    "kimi-k25": Case(
        "Kimi_K25",
        {
            "text_config": LATENTS,
            "vision_config": SEES | {"patch_size": 4, "pos_emb_height": 5, "pos_emb_width": 5},
            "projection_hidden_size": 48,
            "tie_word_embeddings": False,
        }
        | QWEN_TOKENS,
        NEVER_LARGER,
    ),
    "kimi-vl": Case(
        "Kimi_K25",
        {
            "text_config": LATENTS | {"q_lora_rank": None, "routed_scaling_factor": 2.446},
            "vision_config": SEES | {"patch_size": 4, "pos_emb_height": 6, "pos_emb_width": 6},
            "projection_hidden_size": 48,
            "tie_word_embeddings": False,
        }
        | QWEN_TOKENS
        | {"video_token_id": PLACEHOLDER},  # it knows no videos
        NEVER_LARGER,
        with_moonvit,
        "KimiVLForConditionalGeneration",
    ),
    "step-3.7": step(100.0, bias=True),
    "step-3.7-files": step(10_000.0, bias=False),  # GGUF files say no other theta
    "molmo2": Case(
        "Llava",
        {
            "text_config": WIDE | {"class": "Qwen3Config", "head_dim": 16, "vocab_size": 189},
            "vision_config": CROPPED,
            "image_token_index": PLACEHOLDER,
        },
        OVERLAPPING,
        with_pooling,
        "Molmo2ForConditionalGeneration",
    ),
    "molmo2-o": Case(
        "Llava",
        {
            "text_config": WIDE
            | {
                "class": "Olmo3Config",
                "vocab_size": 189,
                "num_hidden_layers": 4,
                "layer_types": [*["sliding_attention"] * 3, "full_attention"],
                "sliding_window": POSITIONS,
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                    "full_attention": {
                        "rope_type": "yarn",
                        "rope_theta": 500.0,
                        "factor": 8.0,
                        "attention_factor": 1.2,
                        "original_max_position_embeddings": 32,
                    },
                },
            },
            "vision_config": CROPPED,
            "image_token_index": PLACEHOLDER,
        },
        OVERLAPPING,
        with_pooling,
        "Molmo2ForConditionalGeneration",
    ),
    "glm-ocr": Case(
        "GlmOcr",
        {
            "text_config": TEXT | {"head_dim": 16, "rope_parameters": SECTIONS},
            "vision_config": GLM_TOWER | {"out_hidden_size": 72, "attention_bias": True},
        }
        | GLM_TOKENS,
        QWEN_PATCHES,
    ),
}
