"""A tiny Qwen2.5-VL and a tiny LLaVA-OneVision with random weights as folders of the hub, and what
transformers says with them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from penstock.forms.patches import VideoFrames
from tests.shared.media.media_tokenizer import tokenizer
from tests.system.hub_folders import continued, write_folder

PATCH, SECONDS = 4, 1.0
SIDE = 20
"""The side of LLaVA-OneVision's pictures, pixels: five patches in a row."""
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}:{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for c in m['content'] %}{% if c['type'] == 'image' %}<|image_pad|>"
    "{% elif c['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}"
    "{{ c['text'] }}{% endif %}{% endfor %}{% endif %};{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def write_qwen(folder: Path) -> Path:
    """The folder, with weights, tokenizer, template and the processors' settings."""
    import torch
    from transformers import Qwen2_5_VLConfig
    from transformers import Qwen2_5_VLForConditionalGeneration as Qwen
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokens = tokenizer()
    ids = tokens.get_vocab(with_added_tokens=True)
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(ids),
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "initializer_range": 0.25,
            "bos_token_id": ids["<s>"],
            "eos_token_id": ids["</s>"],
            "pad_token_id": ids["</s>"],
            "rope_parameters": {
                "rope_type": "default",
                "mrope_section": [2, 3, 3],
                "rope_theta": 100.0,
            },
        },
        vision_config={
            "depth": 2,
            "hidden_size": 48,
            "out_hidden_size": 64,
            "intermediate_size": 52,
            "num_heads": 4,
            "patch_size": PATCH,
            "window_size": 16,
            "fullatt_block_indexes": [1],
            "tokens_per_second": 2,
            "initializer_range": 0.2,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    torch.manual_seed(23)
    model = Qwen(config).eval()
    size = {"shortest_edge": 16 * 16, "longest_edge": 48 * 48}
    processor = Qwen2VLImageProcessorPil(size=size, patch_size=PATCH)
    named = {"eos_token": "</s>"}
    return write_folder(folder, model, processor, tokens, named=named, template=TEMPLATE)


def write_qwen3_5(folder: Path) -> Path:
    """Writes the folder of a tiny Qwen3.5, two of whose layers are recurrent."""
    import torch
    from transformers import Qwen3_5Config
    from transformers import Qwen3_5ForConditionalGeneration as Qwen
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokens = tokenizer()
    ids = tokens.get_vocab(with_added_tokens=True)
    config = Qwen3_5Config(
        text_config={
            "vocab_size": len(ids),
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 12,
            "linear_value_head_dim": 20,
            "max_position_embeddings": 512,
            "initializer_range": 0.25,
            "bos_token_id": ids["<s>"],
            "eos_token_id": ids["</s>"],
            "pad_token_id": ids["</s>"],
            "rope_parameters": {
                "rope_type": "default",
                "mrope_section": [2, 1, 1],
                "rope_theta": 100.0,
                "partial_rotary_factor": 0.5,
            },
        },
        vision_config={
            "depth": 2,
            "hidden_size": 48,
            "out_hidden_size": 64,
            "intermediate_size": 52,
            "num_heads": 4,
            "patch_size": PATCH,
            "num_position_embeddings": 25,
            "initializer_range": 0.2,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    torch.manual_seed(37)
    model = Qwen(config).eval()
    size = {"shortest_edge": 16 * 16, "longest_edge": 48 * 48}
    processor = Qwen2VLImageProcessorPil(size=size, patch_size=PATCH)
    named = {"eos_token": "</s>"}
    return write_folder(folder, model, processor, tokens, named=named, template=TEMPLATE)


def write_onevision(folder: Path) -> Path:
    """Writes the folder of a tiny LLaVA-OneVision."""
    import torch
    from transformers import LlavaOnevisionConfig, Qwen2Config, SiglipVisionConfig
    from transformers import LlavaOnevisionForConditionalGeneration as OneVision
    from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
        LlavaOnevisionImageProcessorPil,
    )

    tokens = tokenizer()
    ids = tokens.get_vocab(with_added_tokens=True)
    forms = [[SIDE, SIDE], [SIDE, 2 * SIDE]]
    config = LlavaOnevisionConfig(
        text_config=Qwen2Config(
            vocab_size=len(ids),
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            initializer_range=0.25,
            bos_token_id=ids["<s>"],
            eos_token_id=ids["</s>"],
            pad_token_id=ids["</s>"],
        ),
        vision_config=SiglipVisionConfig(
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=SIDE,
            patch_size=PATCH,
            initializer_range=0.2,
            vision_use_head=False,
        ),
        image_token_id=ids["<image>"],
        video_token_id=ids["<|video_pad|>"],
        image_grid_pinpoints=forms,
        tie_word_embeddings=False,
    )
    torch.manual_seed(29)
    model = OneVision(config).eval()
    size = {"height": SIDE, "width": SIDE}
    processor = LlavaOnevisionImageProcessorPil(size=size, image_grid_pinpoints=forms)
    template = TEMPLATE.replace("<|vision_start|><|video_pad|><|vision_end|>", "<|video_pad|>")
    return write_folder(folder, model, processor, tokens, template=template)


def said_of_frames(
    folder: Path, prompt_token_ids: list[int], pixels: np.ndarray, count: int
) -> list[int]:
    """So many tokens of the tiny LLaVA-OneVision. pixels: float32 [frames, 3, height, width]."""
    import torch
    from transformers import LlavaOnevisionForConditionalGeneration

    model = LlavaOnevisionForConditionalGeneration.from_pretrained(folder).eval()
    given = {
        "input_ids": torch.tensor([prompt_token_ids]),
        "pixel_values_videos": torch.from_numpy(pixels)[None],
    }
    return continued(model, given, count)[1]


@cache
def _theirs(folder: Path) -> Any:
    from transformers import Qwen2_5_VLForConditionalGeneration

    return Qwen2_5_VLForConditionalGeneration.from_pretrained(folder).eval()


def said_by_transformers(
    folder: Path,
    prompt_token_ids: list[int],
    video: VideoFrames,
    videos: list[np.ndarray],
    count: int,
) -> list[int]:
    """So many tokens, the likeliest each, behind the prompt. videos: their resized frames, a
    second for two of them."""
    import torch

    model = _theirs(folder)
    token = model.config.video_token_id
    inputs = [video.inputs({"frames": frames}) for frames in videos]
    pixels = torch.cat([torch.from_numpy(each["pixel_values"]) for each in inputs])
    grids = torch.stack([torch.from_numpy(each["grid_thw"]).long() for each in inputs])
    ids = list(prompt_token_ids)
    for _ in range(count):
        given = torch.tensor([ids])
        with torch.inference_mode():
            logits = model(
                given,
                mm_token_type_ids=2 * (given == token).int(),
                pixel_values_videos=pixels,
                video_grid_thw=grids,
                second_per_grid_ts=torch.tensor([SECONDS] * len(inputs)),
            ).logits
        ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt_token_ids) :]
