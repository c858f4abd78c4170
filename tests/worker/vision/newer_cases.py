"""Tiny models of families of 2025 and 2026 that see."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.forms.anyres import AnyresImages
from penstock.forms.canvas import CanvasImages
from penstock.forms.documents import DocumentImages
from penstock.forms.naflex import NaflexImages
from penstock.forms.patches import PatchImages
from penstock.forms.pixels import Pixels
from penstock.forms.pooled import PooledImages
from penstock.forms.rows import RowImages
from penstock.forms.sheets import BarredImages, SheetImages
from penstock.forms.sliced import SlicedImages
from tests.worker.vision.case import (
    COLOURS,
    PLACEHOLDER,
    QWEN_TOKENS,
    SECTIONS_3,
    SEES,
    TEXT,
    WIDE,
    Case,
)
from tests.worker.vision.patch_cases import DELTA
from tests.worker.vision.sheet_models import HEARS, make_sheets

PIXTRAL: dict[str, Any] = SEES | {
    "class": "PixtralVisionConfig",
    "image_size": 64,
    "patch_size": 4,
    "hidden_act": "silu",
}
SIGLIP2: dict[str, Any] = SEES | {
    "class": "Siglip2VisionConfig",
    "patch_size": 4,
    "num_patches": 25,
}
LFM2: dict[str, Any] = {
    "block_multiple_of": 8,
    "layer_types": ["conv", "full_attention", "conv"],
}
NAFLEX = NaflexImages(
    pixels=COLOURS, patch=4, merge=2, min_rows=4, max_rows=12, tile=16, least=2, most=4
)
FORMS = [[24, 24], [24, 48], [48, 24], [48, 48], [24, 72]]
ANYRES = AnyresImages(
    pixels=COLOURS, tile=24, side=4, forms=tuple((a, b) for a, b in FORMS), most=4
)
MINICPM: dict[str, Any] = {
    "text_config": DELTA | {"class": "Qwen3_5TextConfig"},
    "vision_config": SEES | {"image_size": 28, "patch_size": 4},
    "image_token_id": PLACEHOLDER,
    "insert_layer_id": 1,
}
GEMMA4: dict[str, Any] = TEXT | {
    "head_dim": 16,
    "global_head_dim": 32,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 21,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 30.0,
    "use_bidirectional_attention": "vision",
}
GEMMA4_TOWER: dict[str, Any] = SEES | {
    "num_key_value_heads": 4,
    "head_dim": 12,
    "patch_size": 4,
    "position_embedding_size": 40,
    "standardize": True,
}
GEMMA4_UNIFIED = {key: value for key, value in GEMMA4.items() if "per_layer_input" not in key}
GEMMA4_SQUARES: dict[str, Any] = {
    "patch_size": 4,
    "mm_embed_dim": 48,
    "mm_posemb_size": 40,
    "output_proj_dims": 48,
    "rms_norm_eps": 1e-3,
}
GEMMA4_TOKENS = {"image_token_id": PLACEHOLDER, "video_token_id": 999, "audio_token_id": 999}
"""Others than pictures' are none of the vocabulary: an answer may have any."""
POOLED = PooledImages(pixels=Pixels(resample=3, rescale=1 / 255), patch=4, merge=3, most=70)
DEEPSEEK: dict[str, Any] = TEXT | {
    "hidden_size": 96,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "routed_scaling_factor": 1.5,
}
CLIP: dict[str, Any] = SEES | {
    "hidden_size": 32,
    "intermediate_size": 128,
    "image_size": 42,
    "patch_size": 14,
}


def with_clip(config: Any) -> Any:
    """DeepSeek-OCR, of the configuration of the second one."""
    from tests.worker.vision.pages_model import PagesModel

    return PagesModel(config, CLIP)


def with_bars(config: Any) -> Any:
    """Phi-3-vision, of the configuration of LLaVA."""
    from tests.worker.vision.phi3_model import Phi3V

    return Phi3V(config)


NEWER: dict[str, Case] = {
    "deepseek-ocr": Case(
        "DeepseekOcr2",
        {
            "text_config": DEEPSEEK,
            "vision_config": {
                "sam_config": SEES
                | {"image_size": 128, "mlp_dim": 192, "downsample_channels": [24, 32]}
                | {"global_attn_indexes": [2]},
                "encoder_config": {
                    "hidden_size": 32,
                    "intermediate_size": 40,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 4,
                },
            },
            "image_token_id": PLACEHOLDER,
        },
        DocumentImages(
            pixels=COLOURS,
            patch=16,
            tile=64,
            page=128,
            tile_rows=1,
            page_rows=4,
            most=4,
            lines=True,
        ),
        with_clip,
        "DeepseekOCRForCausalLM",
    ),
    "deepseek-ocr2": Case(
        "DeepseekOcr2",
        {
            "text_config": DEEPSEEK,
            "vision_config": {
                "sam_config": SEES
                | {
                    "output_channels": 16,
                    "image_size": 48,
                    "patch_size": 4,
                    "window_size": 5,
                    "global_attn_indexes": [2],
                    "mlp_dim": 64,
                    "downsample_channels": [24, 32],
                },
                "encoder_config": {
                    "hidden_size": 32,
                    "intermediate_size": 40,
                    "num_hidden_layers": 2,
                    "num_attention_heads": 4,
                    "num_key_value_heads": 2,
                    "initializer_range": 0.2,
                    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
                },
            },
            "image_token_id": PLACEHOLDER,
        },
        DocumentImages(pixels=COLOURS, patch=4, tile=32, page=48, tile_rows=4, page_rows=9, most=4),
    ),
    "gemma4": Case(
        "Gemma4",
        {"text_config": GEMMA4, "vision_config": GEMMA4_TOWER, **GEMMA4_TOKENS},
        POOLED,
    ),
    "gemma4-clipped-with-inputs-of-layers": Case(
        "Gemma4",
        {
            "text_config": GEMMA4
            | {
                "hidden_size_per_layer_input": 32,
                "vocab_size_per_layer_input": 199,
                "num_kv_shared_layers": 2,
                "use_bidirectional_attention": None,
            },
            "vision_config": GEMMA4_TOWER | {"standardize": False, "use_clipped_linears": True},
            **GEMMA4_TOKENS,
        },
        POOLED,
    ),
    "gemma4-12b": Case(
        "Gemma4Unified",
        {
            "text_config": GEMMA4_UNIFIED,
            "vision_config": GEMMA4_SQUARES,
            "audio_config": None,
            **GEMMA4_TOKENS,
        },
        POOLED,
    ),
    "minicpm-v": Case(
        "MiniCPMV4_6", MINICPM, SlicedImages(pixels=COLOURS, patch=4, scale=32, most=4)
    ),
    "minicpm-v-of-four": Case(
        "MiniCPMV4_6",
        MINICPM
        | {
            "text_config": MINICPM["text_config"] | {"tie_word_embeddings": True},
            "downsample_mode": "4x",
            "tie_word_embeddings": True,
        },
        SlicedImages(pixels=COLOURS, patch=4, merge=2, scale=16, most=4),
    ),
    "lighton-ocr": Case(
        "LightOnOcr",
        {
            "text_config": TEXT | {"class": "Qwen3Config", "head_dim": 16},
            "vision_config": PIXTRAL,
            "image_token_id": PLACEHOLDER,
        },
        RowImages(pixels=COLOURS, longest_edge=64, patch=8, row_end="", end=""),
    ),
    "lfm2-vl": Case(
        "Lfm2Vl",
        {
            "text_config": WIDE | LFM2 | {"class": "Lfm2Config"},
            "vision_config": SIGLIP2,
            "image_token_id": PLACEHOLDER,
            "projector_hidden_size": 56,
        },
        NAFLEX,
    ),
    "lfm2-vl-moe-without-a-norm": Case(
        "Lfm2Vl",
        {
            "text_config": WIDE
            | LFM2
            | {
                "class": "Lfm2MoeConfig",
                "num_dense_layers": 1,
                "num_experts": 6,
                "num_experts_per_tok": 3,
                "moe_intermediate_size": 24,
            },
            "vision_config": SIGLIP2,
            "image_token_id": PLACEHOLDER,
            "projector_hidden_size": 56,
            "projector_use_layernorm": False,
            "projector_bias": False,
        },
        NAFLEX,
    ),
    "llava-next": Case(
        "LlavaNext",
        {
            "text_config": TEXT | {"class": "MistralConfig", "head_dim": 16},
            "vision_config": SEES
            | {"class": "CLIPVisionConfig", "image_size": 24, "patch_size": 6},
            "image_token_index": PLACEHOLDER,
            "image_grid_pinpoints": FORMS,
        },
        ANYRES,
    ),
    "granite-vision": Case(
        "LlavaNext",
        {
            "text_config": WIDE
            | {
                "class": "GraniteConfig",
                "embedding_multiplier": 3.0,
                "attention_multiplier": 0.3,
                "residual_multiplier": 0.5,
                "logits_scaling": 2.0,
            },
            "vision_config": SEES
            | {"class": "SiglipVisionConfig", "image_size": 24, "patch_size": 6},
            "image_token_index": PLACEHOLDER,
            "image_grid_pinpoints": FORMS,
            "vision_feature_layer": [-4, -2, -1],
            "vision_feature_select_strategy": "full",
            "tie_word_embeddings": True,
        },
        ANYRES,
    ),
    "phi4-multimodal": Case(
        "Phi4Multimodal",
        WIDE
        | {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 100.0,
                "partial_rotary_factor": 0.75,
            },
            "vision_config": SEES
            | {"image_size": 16, "patch_size": 4, "crop_size": 16, "image_token_id": PLACEHOLDER},
            "audio_config": HEARS,
        },
        SheetImages(pixels=msgspec.structs.replace(COLOURS, resample=2), tile=16, patch=4),
        make_sheets,
        "Phi4MultimodalForCausalLM",
    ),
    "phi3-v": Case(
        "Llava",
        {
            "text_config": WIDE
            | {
                "class": "Phi3Config",
                "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
            },
            "vision_config": SEES
            | {"class": "CLIPVisionConfig", "image_size": 16, "patch_size": 4},
            "image_token_index": PLACEHOLDER,
        },
        BarredImages(pixels=msgspec.structs.replace(COLOURS, resample=2), tile=16, patch=4, most=5),
        with_bars,
        "Phi3VForCausalLM",
    ),
    "qianfan-ocr": Case(
        "QianfanOCR",
        {
            "text_config": TEXT | {"class": "Qwen3Config", "head_dim": 16},
            "vision_config": SEES
            | {
                "image_size": [24, 24],
                "patch_size": [6, 6],
                "layer_scale_init_value": 0.8,
            },
            "image_token_id": PLACEHOLDER,
        },
        CanvasImages(pixels=COLOURS, tile=24, rows=4),
    ),
    "granite4-vision": Case(
        "Granite4Vision",
        {
            "text_config": WIDE
            | {
                "class": "Granite4VisionTextConfig",
                "num_hidden_layers": 7,
                "embedding_multiplier": 3.0,
                "attention_multiplier": 0.3,
                "residual_multiplier": 0.5,
                "logits_scaling": 2.0,
            },
            "vision_config": SEES
            | {"class": "SiglipVisionConfig", "image_size": 24, "patch_size": 6},
            "qformer_config": {
                "hidden_size": 48,
                "encoder_hidden_size": 48,
                "num_hidden_layers": 1,
                "num_attention_heads": 4,
                "intermediate_size": 40,
                "initializer_range": 0.2,
                "max_position_embeddings": 20,
                "vocab_size": 10,
            },
            "image_token_index": PLACEHOLDER,
            "image_grid_pinpoints": FORMS,
            "vision_feature_select_strategy": "full",
            "downsample_rate": "2/4",
            "deepstack_layer_map": [[-3, 4], [-2, 2], [-1, 0]],
            "spatial_target_layers": [1, 3, 5, 6],
            "tie_word_embeddings": True,
        },
        msgspec.structs.replace(ANYRES, side=2),
    ),
    "paddleocr-vl": Case(
        "PaddleOCRVL",
        {
            "text_config": TEXT
            | {"head_dim": 16, "rope_parameters": SECTIONS_3, "tie_word_embeddings": False},
            "vision_config": SEES | {"image_size": 20, "patch_size": 4},
            "tie_word_embeddings": False,
        }
        | QWEN_TOKENS,
        PatchImages(
            pixels=COLOURS,
            min_pixels=64,
            max_pixels=4096,
            patch=4,
            merge=2,
            frames=1,
            widened=True,
        ),
    ),
}
