"""Families that see: config.json of tiny models, and transformers' processor of each."""

from __future__ import annotations

from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.deepseek_ocr2.image_processing_pil_deepseek_ocr2 import (
    DeepseekOcr2ImageProcessorPil,
)
from transformers.models.deepseek_ocr2.processing_deepseek_ocr2 import DeepseekOcr2Processor
from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil
from transformers.models.glm46v.processing_glm46v import Glm46VProcessor
from transformers.models.granite4_vision.processing_granite4_vision import Granite4VisionProcessor
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor
from transformers.models.llama4.processing_llama4 import Llama4Processor
from transformers.models.llava.processing_llava import LlavaProcessor
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
    LlavaOnevisionImageProcessorPil,
)
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor
from transformers.models.minimax_m3_vl.processing_minimax_m3_vl import MiniMaxM3VLProcessor
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.step3p7.processing_step3p7 import Step3p7Processor

from tests.shared.media.cohere_pictures import COHERE_FAMILIES
from tests.shared.media.janus_pictures import MAKERS_FAMILIES
from tests.shared.media.lfm2_pictures import Lfm2Pictures
from tests.shared.media.llama4_pictures import Llama4Pictures
from tests.shared.media.media_tokenizer import JANUS, MINIMAX, STEP
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
    internvl,
    janus,
    kimi_k25,
    kimi_vl,
    lighton_ocr,
    minicpmv,
    paddleocr_vl,
    phi4_multimodal,
    pixtral,
    qianfan_ocr,
    smolvlm,
    unchecked,
    without_videos,
)
from tests.shared.media.without_torchvision import MiniMaxPictures, StepPictures

FORMS = [[24 * rows, 24 * columns] for rows in (1, 2) for columns in (1, 2, 3)]

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
    "idefics3": Family(
        "Idefics3ForConditionalGeneration",
        lambda ids: {
            "image_token_id": ids["<image>"],
            "scale_factor": 2,
            "vision_config": {"patch_size": 4, "image_size": 16},
        },
        lambda fast: Idefics3Processor(
            Idefics3ImageProcessorPil(
                size={"longest_edge": 64}, max_image_size={"longest_edge": 16}
            ),
            fast,
            image_seq_len=4,
        ),
        "<image>",
    ),
    "smolvlm": Family(
        "SmolVLMForConditionalGeneration",
        lambda ids: {
            "image_token_id": ids["<image>"],
            "scale_factor": 2,
            "vision_config": {"patch_size": 4, "image_size": 16},
        },
        smolvlm,
        "<image>",
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
    "qwen2_5_vl": Family(
        "Qwen2_5_VLForConditionalGeneration",
        lambda ids: {
            "image_token_id": ids["<|image_pad|>"],
            "vision_config": {"patch_size": 14, "spatial_merge_size": 2},
        },
        lambda fast: without_videos(Qwen2_5_VLProcessor)(
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
    "internvl": Family(
        "InternVLForConditionalGeneration",
        lambda ids: {
            "image_token_id": ids["<IMG_CONTEXT>"],
            "image_seq_length": 4,
            "vision_config": {"patch_size": [6, 6], "image_size": [24, 24]},
        },
        internvl,
        "<IMG_CONTEXT>",
    ),
    "qianfan_ocr": Family(
        "QianfanOCRForConditionalGeneration",
        lambda ids: {
            "image_token_id": ids["<IMG_CONTEXT>"],
            "image_seq_length": 4,
            "vision_config": {"patch_size": [6, 6], "image_size": [24, 24]},
        },
        qianfan_ocr,
        "<image>",
    ),
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
    "lfm2_vl": Family(
        "Lfm2VlForConditionalGeneration",
        lambda ids: {
            "image_token_id": ids["<image>"],
            "vision_config": {"patch_size": 4},
        },
        lambda fast: unchecked(Lfm2VlProcessor)(
            Lfm2Pictures(
                encoder_patch_size=4,
                tile_size=16,
                min_image_tokens=4,
                max_image_tokens=16,
                max_tiles=6,
            ),
            fast,
        ),
        "<image>",
    ),
    "llava_next": Family(
        "LlavaNextForConditionalGeneration",
        lambda ids: {
            "image_token_index": ids["<image>"],
            "image_grid_pinpoints": FORMS,
            "vision_config": {"patch_size": 6, "image_size": 24},
        },
        lambda fast: LlavaNextProcessor(
            LlavaNextImageProcessorPil(
                size={"shortest_edge": 24},
                crop_size={"height": 24, "width": 24},
                image_grid_pinpoints=FORMS,
            ),
            fast,
            patch_size=6,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        ),
        "<image>",
    ),
    "granite4_vision": Family(
        "Granite4VisionForConditionalGeneration",
        lambda ids: {
            "image_token_index": ids["<image>"],
            "image_grid_pinpoints": FORMS,
            "downsample_rate": "2/4",
            "vision_config": {"patch_size": 6, "image_size": 24},
        },
        lambda fast: Granite4VisionProcessor(
            LlavaNextImageProcessorPil(
                size={"shortest_edge": 24},
                crop_size={"height": 24, "width": 24},
                image_grid_pinpoints=FORMS,
            ),
            fast,
            patch_size=6,
            vision_feature_select_strategy="full",
            downsample_rate="2/4",
        ),
        "<image>",
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
    "phi4_multimodal": Family(
        "Phi4MultimodalForCausalLM",
        lambda ids: {
            "vision_config": {
                "patch_size": 2,
                "image_size": 64,
                "image_token_id": ids["<|image|>"],
            },
        },
        phi4_multimodal,
        "<|image|>",
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
    "deepseek_ocr2": Family(
        "DeepseekOcr2ForConditionalGeneration",
        lambda ids: {
            "image_token_id": ids["<image>"],
            "vision_config": {"sam_config": {"patch_size": 2}},
        },
        lambda fast: DeepseekOcr2Processor(
            DeepseekOcr2ImageProcessorPil(size={"height": 128, "width": 128}, tile_size=96),
            fast,
            patch_size=2,
        ),
        "<image>",
    ),
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
    "step3p7": Family(
        "Step3p7ForConditionalGeneration",
        lambda ids: {"image_token_id": ids["<im_patch>"], "vision_config": {"patch_size": 2}},
        lambda fast: unchecked(Step3p7Processor)(
            StepPictures(
                size={"height": 24, "width": 24},
                patch_size=16,
                max_image_size=60,
                vision_patch_size=2,
            ),
            fast,
        ),
        "<im_patch>",
        STEP,
    ),
    "minicpmv4_6": Family(
        "MiniCPMV4_6ForConditionalGeneration",
        lambda ids: {
            "image_token_id": ids["<|image_pad|>"],
            "vision_config": {"patch_size": 4},
        },
        minicpmv,
        "<|image_pad|>",
    ),
    "llama4": Family(
        "Llama4ForConditionalGeneration",
        lambda ids: {
            "image_token_index": ids["<|patch|>"],
            "boi_token_index": ids["<|image_start|>"],
            "eoi_token_index": ids["<|image_end|>"],
            "vision_config": {"patch_size": 6, "image_size": 24},
        },
        lambda fast: unchecked(Llama4Processor)(Llama4Pictures(24, 6), fast, patch_size=6),
        "<|image|>",
    ),
    "llava_onevision": Family(
        "LlavaOnevisionForConditionalGeneration",
        lambda ids: {
            "image_token_index": ids["<image>"],
            "image_grid_pinpoints": FORMS,
            "vision_aspect_ratio": "anyres_max_2",
            "vision_config": {"patch_size": 6, "image_size": 24},
        },
        lambda fast: without_videos(LlavaOnevisionProcessor)(
            LlavaOnevisionImageProcessorPil(
                size={"height": 24, "width": 24}, image_grid_pinpoints=FORMS
            ),
            fast,
            num_image_tokens=16,
            vision_feature_select_strategy="full",
            vision_aspect_ratio="anyres_max_2",
        ),
        "<image>",
    ),
}
