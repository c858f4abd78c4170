"""Families that see: config.json of tiny models, and transformers' processor of each."""

from __future__ import annotations

from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil
from transformers.models.glm46v.processing_glm46v import Glm46VProcessor
from transformers.models.llava.processing_llava import LlavaProcessor
from transformers.models.minimax_m3_vl.processing_minimax_m3_vl import MiniMaxM3VLProcessor
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from tests.shared.media.cohere_pictures import COHERE_FAMILIES
from tests.shared.media.janus_pictures import MAKERS_FAMILIES
from tests.shared.media.media_tokenizer import JANUS, MINIMAX
from tests.shared.media.minicpm_pictures import MINICPM_FAMILIES
from tests.shared.media.molmo_pictures import MOLMO, MolmoPictures, MolmoProcessor
from tests.shared.media.phi3_pictures import PHI3_V
from tests.shared.media.picture_family import Family
from tests.shared.media.processors import (
    deepseek_vl,
    deepseek_vl_hybrid,
    gemma3,
    gemma3n,
    gemma4,
    gemma4_unified,
    janus,
    kimi_k25,
    kimi_vl,
    lighton_ocr,
    paddleocr_vl,
    pixtral,
    unchecked,
    without_videos,
)
from tests.shared.media.tiled_families import TILED_FAMILIES
from tests.shared.media.without_torchvision import MiniMaxPictures

FAMILIES: dict[str, Family] = {
    "llava": Family(
        "LlavaForConditionalGeneration",
        lambda ids: {
            "image_token_index": ids["<image>"],
            "vision_config": {
                "model_type": "clip_vision_model",
                "patch_size": 14,
                "image_size": 56,
            },
        },
        lambda fast: LlavaProcessor(
            CLIPImageProcessorPil(
                size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}
            ),
            fast,
            patch_size=14,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        ),
        "<image>",
    ),
    "gemma3": Family(
        "Gemma3ForConditionalGeneration",
        lambda ids: {
            "boi_token_index": ids["<start_of_image>"],
            "eoi_token_index": ids["<end_of_image>"],
            "image_token_index": ids["<image_soft_token>"],
            "mm_tokens_per_image": 4,
            "vision_config": {"patch_size": 8, "image_size": 32},
        },
        gemma3,
        "<start_of_image>",
    ),
    "gemma3n": Family(
        "Gemma3nForConditionalGeneration",
        lambda ids: {
            "boi_token_id": ids["<start_of_image>"],
            "eoi_token_id": ids["<end_of_image>"],
            "image_token_id": ids["<image_soft_token>"],
            "vision_soft_tokens_per_image": 4,
            "vision_config": {"image_size": 64},
        },
        gemma3n,
        "<image_soft_token>",
    ),
    "gemma4": Family(
        "Gemma4ForConditionalGeneration",
        lambda ids: {
            "boi_token_id": ids["<|image>"],
            "eoi_token_id": ids["<image|>"],
            "image_token_id": ids["<|image|>"],
            "vision_config": {"patch_size": 4, "pooling_kernel_size": 2},
        },
        gemma4,
        "<|image|>",
    ),
    "gemma4_unified": Family(
        "Gemma4UnifiedForConditionalGeneration",
        lambda ids: {
            "boi_token_id": ids["<|image>"],
            "eoi_token_id": ids["<image|>"],
            "image_token_id": ids["<|image|>"],
            "vision_config": {"patch_size": 4, "pooling_kernel_size": 2},
        },
        gemma4_unified,
        "<|image|>",
    ),
    "qwen2_vl": Family(
        "Qwen2VLForConditionalGeneration",
        lambda ids: {
            "image_token_id": ids["<|image_pad|>"],
            "vision_config": {"patch_size": 14, "spatial_merge_size": 2},
        },
        lambda fast: without_videos(Qwen2VLProcessor)(
            Qwen2VLImageProcessorPil(size={"shortest_edge": 56 * 56, "longest_edge": 112 * 112}),
            fast,
        ),
        "<|vision_start|><|image_pad|><|vision_end|>",
    ),
    **{
        name: Family(
            architecture,
            lambda ids: {
                "image_token_id": ids["<|image_pad|>"],
                "vision_config": {"patch_size": 14, "spatial_merge_size": 2},
            },
            lambda fast: without_videos(Qwen2_5_VLProcessor)(
                Qwen2VLImageProcessorPil(
                    size={"shortest_edge": 56 * 56, "longest_edge": 112 * 112}
                ),
                fast,
            ),
            "<|vision_start|><|image_pad|><|vision_end|>",
        )
        for name, architecture in (
            ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
            ("exaone4_5", "Exaone4_5_ForConditionalGeneration"),
            # Its own processor, which asks for what makes sounds and videos, grows texts likewise.
            ("qwen2_5_omni", "Qwen2_5OmniThinkerForConditionalGeneration"),
        )
    },
    **{
        name: Family(
            architecture,
            lambda ids: {
                "image_token_id": ids["<|image_pad|>"],
                "vision_config": {"patch_size": 16, "spatial_merge_size": 2},
            },
            lambda fast: without_videos(Qwen3VLProcessor)(
                Qwen2VLImageProcessorPil(
                    size={"shortest_edge": 64 * 64, "longest_edge": 128 * 128}, patch_size=16
                ),
                fast,
            ),
            "<|vision_start|><|image_pad|><|vision_end|>",
        )
        for name, architecture in (
            ("qwen3_vl", "Qwen3VLForConditionalGeneration"),
            ("qwen3_5", "Qwen3_5ForConditionalGeneration"),
            # Its own processor, which asks for what makes sounds and videos, grows texts likewise.
            ("qwen3_omni", "Qwen3OmniMoeThinkerForConditionalGeneration"),
        )
    },
    **{
        name: Family(
            architecture,
            lambda ids: {
                "image_token_id": ids["<|image|>"],
                "vision_config": {"patch_size": 14, "spatial_merge_size": 2},
            },
            lambda fast: without_videos(Glm46VProcessor)(
                Glm46VImageProcessorPil(
                    size={"shortest_edge": 2 * 56 * 56, "longest_edge": 2 * 112 * 112}
                ),
                fast,
            ),
            "<|image|>",
        )
        for name, architecture in (
            ("glm4v", "Glm4vForConditionalGeneration"),
            ("glm_ocr", "GlmOcrForConditionalGeneration"),
        )
    },
    "pixtral": Family(
        "LlavaForConditionalGeneration",
        lambda ids: {
            "image_token_index": ids["[IMG]"],
            "vision_config": {"model_type": "pixtral", "patch_size": 8},
        },
        lambda fast: pixtral(fast, 1),
        "[IMG]",
    ),
    "mistral3": Family(
        "Mistral3ForConditionalGeneration",
        lambda ids: {
            "image_token_index": ids["[IMG]"],
            "spatial_merge_size": 2,
            "vision_config": {"model_type": "pixtral", "patch_size": 8},
        },
        lambda fast: pixtral(fast, 2),
        "[IMG]",
    ),
    "lighton_ocr": Family(
        "LightOnOcrForConditionalGeneration",
        lambda ids: {
            "image_token_id": ids["<|image_pad|>"],
            "vision_config": {"patch_size": 8},
        },
        lighton_ocr,
        "<|image_pad|>",
    ),
    "kimi_k25": Family(
        "Kimi_K25ForConditionalGeneration",
        lambda ids: {
            "image_token_id": ids["<|image_pad|>"],
            "vision_config": {"patch_size": 8, "merge_kernel_size": [2, 2]},
        },
        kimi_k25,
        "<|vision_start|><|image_pad|><|vision_end|>",
    ),
    "kimi_vl": Family(
        "KimiVLForConditionalGeneration",
        lambda ids: {
            "media_placeholder_token_id": ids["<|image_pad|>"],
            "vision_config": {"patch_size": 8, "merge_kernel_size": [2, 2]},
        },
        kimi_vl,
        "<|vision_start|><|image_pad|><|vision_end|>",
    ),
    "paddleocr_vl": Family(
        "PaddleOCRVLForConditionalGeneration",
        lambda ids: {
            "image_token_id": ids["<|image_pad|>"],
            "vision_config": {"patch_size": 14, "spatial_merge_size": 2},
        },
        paddleocr_vl,
        "<|vision_start|><|image_pad|><|vision_end|>",
    ),
    "phi3_v": PHI3_V,
    "deepseek_vl": Family(
        "DeepseekVLForConditionalGeneration",
        lambda ids: {
            "image_token_id": ids["<image>"],
            "vision_config": {"patch_size": 6, "image_size": 24},
        },
        deepseek_vl,
        "<image>",
    ),
    "deepseek_vl_hybrid": Family(
        "DeepseekVLHybridForConditionalGeneration",
        lambda ids: {
            "image_token_id": ids["<image>"],
            "vision_config": {"patch_size": 6, "image_size": 24},
            "high_res_vision_config": {"patch_size": 4, "image_size": 40},
        },
        deepseek_vl_hybrid,
        "<image>",
    ),
    "janus": Family(
        "JanusForConditionalGeneration",
        lambda ids: {
            "image_token_id": ids["<image>"],
            "vision_config": {"patch_size": 6, "image_size": 24},
        },
        janus,
        "<image>",
        JANUS,
    ),
    **MAKERS_FAMILIES,
    **MINICPM_FAMILIES,
    **COHERE_FAMILIES,
    **TILED_FAMILIES,
    "minimax_m3": Family(
        "MiniMaxM3SparseForConditionalGeneration",
        lambda ids: {
            "image_token_index": ids["]<]image[>["],
            "vision_config": {
                "patch_size": 14,
                "img_token_compression_config": {"spatial_merge_size": 2, "temporal_patch_size": 2},
            },
        },
        lambda fast: unchecked(MiniMaxM3VLProcessor)(
            MiniMaxPictures(size={"shortest_edge": 56 * 56, "longest_edge": 112 * 112}), fast
        ),
        "]<]image[>[",
        MINIMAX,
    ),
    "molmo2": Family(
        "Molmo2ForConditionalGeneration",
        lambda ids: {
            "image_patch_id": ids["<im_patch>"],
            "image_start_token_id": ids["<im_start>"],
            "image_end_token_id": ids["<im_end>"],
            "image_col_id": ids["<im_col>"],
            "low_res_image_start_token_id": ids["<low_res_im_start>"],
            "frame_start_token_id": ids["<frame_start>"],
            "frame_end_token_id": ids["<frame_end>"],
            "text_config": {"vocab_size": ids["<im_start>"], "additional_vocab_size": len(MOLMO)},
            "vit_config": {"image_patch_size": 4, "image_default_input_size": [20, 20]},
        },
        lambda fast: MolmoProcessor(MolmoPictures(20, 4), fast),
        "<|image|>",
        MOLMO,
    ),
}
