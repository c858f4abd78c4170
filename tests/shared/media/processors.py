"""Folders in the hub's format of models that see, with processors of transformers over them: tiny
tokenizers, small pictures, no weights."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.deepseek_ocr2.image_processing_pil_deepseek_ocr2 import (
    DeepseekOcr2ImageProcessorPil,
)
from transformers.models.deepseek_ocr2.processing_deepseek_ocr2 import DeepseekOcr2Processor
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil
from transformers.models.glm46v.processing_glm46v import Glm46VProcessor
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.granite4_vision.processing_granite4_vision import Granite4VisionProcessor
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.kimi_k25.processing_kimi_k25 import Kimi_K25Processor
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
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import (
    MiniCPMV4_6ImageProcessorPil,
)
from transformers.models.minicpmv4_6.processing_minicpmv4_6 import MiniCPMV4_6Processor
from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import (
    PaddleOCRVLImageProcessorPil,
)
from transformers.models.paddleocr_vl.processing_paddleocr_vl import PaddleOCRVLProcessor
from transformers.models.pixtral import image_processing_pil_pixtral
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qianfan_ocr.processing_qianfan_ocr import QianfanOCRProcessor
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.smolvlm import processing_smolvlm
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from tests.shared.media.lfm2_pictures import Lfm2Pictures
from tests.shared.media.llama4_pictures import Llama4Pictures
from tests.shared.media.without_torchvision import KimiPictures

SPECIAL = (
    "<s>",
    "</s>",
    "<image>",
    "</image>",
    "<slice>",
    "</slice>",
    "<image_id>",
    "</image_id>",
    "<fake_token_around_image>",
    "<global-img>",
    "<end_of_utterance>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
    "<|image>",
    "<image|>",
    "<|audio>",
    "<|audio|>",
    "<audio|>",
    "<|video|>",
    "<start_of_image>",
    "<end_of_image>",
    "<image_soft_token>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<img>",
    "</img>",
    "<IMG_CONTEXT>",
    "[IMG]",
    "[IMG_BREAK]",
    "[IMG_END]",
    "<|image_start|>",
    "<|image_end|>",
    "<|img_thumbnail|>",
    *(f"<|img_row_{row}_col_{column}|>" for row in range(1, 7) for column in range(1, 7)),
    "<|image|>",
    "<|patch|>",
    "<|tile_x_separator|>",
    "<|tile_y_separator|>",
    "<|AUDIO|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
)
MERGES = ("\n\n", "\n\n\n", "ab", "abc")
"""Texts beyond single bytes that the tokenizer has a token for: line breaks join."""


def tokenizer() -> Tokenizer:
    """Bytes, a few merges, and the special tokens of all families."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    merges: list[tuple[str, str]] = []
    for text in MERGES:
        inner = text.replace("\n", "Ċ")
        vocabulary[inner] = len(vocabulary)
        merges.append((inner[:-1], inner[-1]))
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return made


class Family(NamedTuple):
    """architecture, config: config.json's.  processor: of transformers, over a tokenizer.
    mark: what stands for a picture in a prompt's text."""

    architecture: str
    config: Callable[[dict[str, int]], dict[str, Any]]
    processor: Callable[[PreTrainedTokenizerFast], Any]
    mark: str


def _gemma3(fast: PreTrainedTokenizerFast) -> Any:
    fast.add_tokens([])
    names = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    for name, text in {**names, "image_token": "<image_soft_token>"}.items():
        setattr(fast, name, text)
        setattr(fast, f"{name}_id", fast.convert_tokens_to_ids(text))
    pictures = Gemma3ImageProcessorPil(size={"height": 32, "width": 32})
    return Gemma3Processor(pictures, fast, image_seq_length=4)


def _gemma4(fast: PreTrainedTokenizerFast) -> Any:
    """Its module asks for the image processor that needs torchvision, of which it takes a function
    that Pillow's has too."""
    from transformers.models.gemma4 import image_processing_pil_gemma4

    name = "transformers.models.gemma4.image_processing_gemma4"
    sys.modules.setdefault(name, image_processing_pil_gemma4)
    from transformers.models.gemma4.processing_gemma4 import Gemma4Processor

    texts = {
        "boi": "<|image>",
        "eoi": "<image|>",
        "image": "<|image|>",
        "boa": "<|audio>",
        "eoa": "<audio|>",
        "audio": "<|audio|>",
    }
    for name, text in texts.items():
        setattr(fast, f"{name}_token", text)
        setattr(fast, f"{name}_token_id", fast.convert_tokens_to_ids(text))
    pictures = Gemma4ImageProcessorPil(patch_size=4, pooling_kernel_size=2, max_soft_tokens=70)
    return without_videos(Gemma4Processor)(None, pictures, fast, None)


def without_videos(processor: Any) -> Any:
    """The class, without a processor of videos, which needs torchvision."""

    def check(self: Any, name: str, argument: Any) -> Any:
        if argument is not None:
            return processor.check_argument_for_proper_class(self, name, argument)
        return None

    return type(processor.__name__, (processor,), {"check_argument_for_proper_class": check})


def _unchecked(processor: Any) -> Any:
    """The class, with an image processor that isn't transformers'."""
    return type(
        processor.__name__, (processor,), {"check_argument_for_proper_class": lambda *_: None}
    )


def _smolvlm(fast: PreTrainedTokenizerFast) -> Any:
    """Its processor asks for a package that writes out numbers, for videos."""
    processing_smolvlm.num2words = processing_smolvlm.num2words or str
    pictures = SmolVLMImageProcessorPil(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 16}
    )
    return without_videos(processing_smolvlm.SmolVLMProcessor)(pictures, fast, None, 4)


def _internvl(fast: PreTrainedTokenizerFast) -> Any:
    names = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<|video_pad|>",
    }
    for name, text in names.items():
        setattr(fast, name, text)
        setattr(fast, f"{name}_id", fast.convert_tokens_to_ids(text))
    pictures = GotOcr2ImageProcessorPil(size={"height": 24, "width": 24}, max_patches=6)
    return without_videos(InternVLProcessor)(pictures, fast, image_seq_length=4)


def _qianfan_ocr(fast: PreTrainedTokenizerFast) -> Any:
    names = {"start_image": "<img>", "end_image": "</img>", "context_image": "<IMG_CONTEXT>"}
    for name, text in names.items():
        setattr(fast, f"{name}_token", text)
        setattr(fast, f"{name}_token_id", fast.convert_tokens_to_ids(text))
    pictures = GotOcr2ImageProcessorPil(size={"height": 24, "width": 24}, max_patches=6)
    return QianfanOCRProcessor(pictures, fast, image_seq_length=4)


def _pixtral(fast: PreTrainedTokenizerFast, merge: int) -> Any:
    """Patches of 8 pixels, whatever is merged behind them. Its module asks for the image processor
    that needs torchvision, of which it takes a function that Pillow's has too."""
    name = "transformers.models.pixtral.image_processing_pixtral"
    sys.modules.setdefault(name, image_processing_pil_pixtral)
    from transformers.models.pixtral.processing_pixtral import PixtralProcessor

    pictures = PixtralImageProcessorPil(
        size={"longest_edge": 100}, patch_size={"height": 8, "width": 8}
    )
    return PixtralProcessor(pictures, fast, patch_size=8, spatial_merge_size=merge)


def _kimi_k25(fast: PreTrainedTokenizerFast) -> Any:
    texts = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
    for name, text in texts.items():
        setattr(fast, f"{name}_token", text)
        setattr(fast, f"{name}_token_id", fast.convert_tokens_to_ids(text))
    pictures = KimiPictures(
        size={"max_height": 9, "max_width": 9}, patch_size=8, max_patches=40, resample=3
    )
    return _unchecked(Kimi_K25Processor)(pictures, fast, None)


def _minicpmv(fast: PreTrainedTokenizerFast) -> Any:
    texts = {
        "image": "<|image_pad|>",
        "video": "<|video_pad|>",
        "image_start": "<image>",
        "image_end": "</image>",
        "slice_start": "<slice>",
        "slice_end": "</slice>",
        "image_id_start": "<image_id>",
        "image_id_end": "</image_id>",
    }
    for name, text in texts.items():
        setattr(fast, f"{name}_token", text)
        setattr(fast, f"{name}_token_id", fast.convert_tokens_to_ids(text))
    pictures = MiniCPMV4_6ImageProcessorPil(patch_size=4, scale_resolution=32)
    videos = SimpleNamespace(slice_mode=True, downsample_mode="16x", model_input_names=[])
    return _unchecked(MiniCPMV4_6Processor)(pictures, videos, fast)


def _paddleocr_vl(fast: PreTrainedTokenizerFast) -> Any:
    fast.image_token = "<|image_pad|>"
    fast.image_token_id = fast.convert_tokens_to_ids("<|image_pad|>")
    pictures = PaddleOCRVLImageProcessorPil(
        size={"shortest_edge": 56 * 56, "longest_edge": 112 * 112}
    )
    return PaddleOCRVLProcessor(pictures, fast)


def _lighton_ocr(fast: PreTrainedTokenizerFast) -> Any:
    """Pictures in whole squares of patches, as the release's own processor asks for them. Its
    module, too, asks for what needs torchvision."""
    name = "transformers.models.pixtral.image_processing_pixtral"
    sys.modules.setdefault(name, image_processing_pil_pixtral)
    from transformers.models.lighton_ocr.processing_lighton_ocr import LightOnOcrProcessor

    texts = {"image": "<|image_pad|>", "image_break": "[IMG_BREAK]", "image_end": "<|vision_end|>"}
    for name, text in texts.items():
        setattr(fast, f"{name}_token", text)
        setattr(fast, f"{name}_token_id", fast.convert_tokens_to_ids(text))
    pictures = PixtralImageProcessorPil(
        size={"longest_edge": 100}, patch_size={"height": 16, "width": 16}
    )
    return LightOnOcrProcessor(pictures, fast, patch_size=8, spatial_merge_size=2)


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
        _gemma3,
        "<start_of_image>",
    ),
    "gemma4": Family(
        "Gemma4ForConditionalGeneration",
        lambda ids: {
            "boi_token_id": ids["<|image>"],
            "eoi_token_id": ids["<image|>"],
            "image_token_id": ids["<|image|>"],
            "vision_config": {"patch_size": 4, "pooling_kernel_size": 2},
        },
        _gemma4,
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
        _smolvlm,
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
        _internvl,
        "<IMG_CONTEXT>",
    ),
    "qianfan_ocr": Family(
        "QianfanOCRForConditionalGeneration",
        lambda ids: {
            "image_token_id": ids["<IMG_CONTEXT>"],
            "image_seq_length": 4,
            "vision_config": {"patch_size": [6, 6], "image_size": [24, 24]},
        },
        _qianfan_ocr,
        "<image>",
    ),
    "pixtral": Family(
        "LlavaForConditionalGeneration",
        lambda ids: {
            "image_token_index": ids["[IMG]"],
            "vision_config": {"model_type": "pixtral", "patch_size": 8},
        },
        lambda fast: _pixtral(fast, 1),
        "[IMG]",
    ),
    "mistral3": Family(
        "Mistral3ForConditionalGeneration",
        lambda ids: {
            "image_token_index": ids["[IMG]"],
            "spatial_merge_size": 2,
            "vision_config": {"model_type": "pixtral", "patch_size": 8},
        },
        lambda fast: _pixtral(fast, 2),
        "[IMG]",
    ),
    "lighton_ocr": Family(
        "LightOnOcrForConditionalGeneration",
        lambda ids: {
            "image_token_id": ids["<|image_pad|>"],
            "vision_config": {"patch_size": 8},
        },
        _lighton_ocr,
        "<|image_pad|>",
    ),
    "lfm2_vl": Family(
        "Lfm2VlForConditionalGeneration",
        lambda ids: {
            "image_token_id": ids["<image>"],
            "vision_config": {"patch_size": 4},
        },
        lambda fast: _unchecked(Lfm2VlProcessor)(
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
        _kimi_k25,
        "<|vision_start|><|image_pad|><|vision_end|>",
    ),
    "paddleocr_vl": Family(
        "PaddleOCRVLForConditionalGeneration",
        lambda ids: {
            "image_token_id": ids["<|image_pad|>"],
            "vision_config": {"patch_size": 14, "spatial_merge_size": 2},
        },
        _paddleocr_vl,
        "<|vision_start|><|image_pad|><|vision_end|>",
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
    "minicpmv4_6": Family(
        "MiniCPMV4_6ForConditionalGeneration",
        lambda ids: {
            "image_token_id": ids["<|image_pad|>"],
            "vision_config": {"patch_size": 4},
        },
        _minicpmv,
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
        lambda fast: _unchecked(Llama4Processor)(Llama4Pictures(24, 6), fast, patch_size=6),
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


def write_folder(folder: Path, family: Family) -> Any:
    """Writes config.json, tokenizer.json and what the processor saves. Returns the processor."""
    made = tokenizer()
    made.save(str(folder / "tokenizer.json"))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    processor = family.processor(fast)
    processor.image_processor.save_pretrained(folder)
    ids = made.get_vocab(with_added_tokens=True)
    config = {"architectures": [family.architecture], **family.config(ids)}
    (folder / "config.json").write_text(json.dumps(config))
    return processor
