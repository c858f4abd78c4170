"""Families that cut a picture into tiles, or choose among sizes: config.json of tiny models, and
transformers' processor of each."""

from __future__ import annotations

from transformers.models.deepseek_ocr2.image_processing_pil_deepseek_ocr2 import (
    DeepseekOcr2ImageProcessorPil,
)
from transformers.models.deepseek_ocr2.processing_deepseek_ocr2 import DeepseekOcr2Processor
from transformers.models.granite4_vision.processing_granite4_vision import Granite4VisionProcessor
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor
from transformers.models.llama4.processing_llama4 import Llama4Processor
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
    LlavaOnevisionImageProcessorPil,
)
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor
from transformers.models.step3p7.processing_step3p7 import Step3p7Processor

from tests.shared.media.lfm2_pictures import Lfm2Pictures
from tests.shared.media.llama4_pictures import Llama4Pictures
from tests.shared.media.media_tokenizer import STEP
from tests.shared.media.picture_family import Family
from tests.shared.media.processors import (
    internvl,
    minicpmv,
    phi4_multimodal,
    qianfan_ocr,
    smolvlm,
    unchecked,
    without_videos,
)
from tests.shared.media.without_torchvision import StepPictures

FORMS = [[24 * rows, 24 * columns] for rows in (1, 2) for columns in (1, 2, 3)]

TILED_FAMILIES: dict[str, Family] = {
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
"""What FAMILIES has of them."""
