"""Folders in the hub's format of models that see, with processors of transformers over them: tiny
tokenizers, small pictures, no weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.llava.processing_llava import LlavaProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor

SPECIAL = (
    "<s>",
    "</s>",
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
    "<end_of_utterance>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
    "<start_of_image>",
    "<end_of_image>",
    "<image_soft_token>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
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


class _PicturesOnly(Qwen2VLProcessor):
    """Without a processor of videos, which needs torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        if argument is not None:
            return super().check_argument_for_proper_class(argument_name, argument)
        return None


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
    "qwen2_vl": Family(
        "Qwen2VLForConditionalGeneration",
        lambda ids: {
            "image_token_id": ids["<|image_pad|>"],
            "vision_config": {"patch_size": 14, "spatial_merge_size": 2},
        },
        lambda fast: _PicturesOnly(
            Qwen2VLImageProcessorPil(size={"shortest_edge": 56 * 56, "longest_edge": 112 * 112}),
            fast,
        ),
        "<|vision_start|><|image_pad|><|vision_end|>",
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
