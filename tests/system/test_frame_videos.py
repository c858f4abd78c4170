"""Videos whose rows have pictures' token, in the library: InternVL says of a video and a picture
what transformers says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import InternVLConfig, InternVLForConditionalGeneration
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

from penstock import LLM, SamplingParams
from tests.shared.media.media_tokenizer import OF_VIDEOS, tokenizer
from tests.shared.media.videos import noise
from tests.system.hub_folders import continued, write_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

COUNT, SIDE, ROWS = 10, 24, 4
"""Tokens of an answer; the side of a tile, pixels; its embeddings."""


def write_internvl(folder: Path) -> tuple[Path, Any]:
    tokens = tokenizer(*OF_VIDEOS)
    ids = tokens.get_vocab(with_added_tokens=True)
    config = InternVLConfig(
        text_config={
            "model_type": "qwen2",
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
        },
        vision_config={
            "hidden_size": 48,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": [SIDE, SIDE],
            "patch_size": [6, 6],
            "initializer_range": 0.2,
        },
        image_token_id=ids["<IMG_CONTEXT>"],
        image_seq_length=ROWS,
    )
    torch.manual_seed(41)
    model = InternVLForConditionalGeneration(config).eval()
    processor = GotOcr2ImageProcessorPil(size={"height": SIDE, "width": SIDE}, max_patches=6)
    return write_folder(folder, model, processor, tokens), model


def test_a_video_and_a_picture_in_one_prompt(tmp_path: Path) -> None:
    """Neither is resized; each frame is announced by its number."""
    folder, model = write_internvl(tmp_path / "tiny-internvl")
    frames, picture = noise(3, SIDE, SIDE, 1), noise(1, SIDE, SIDE, 2)[0]
    prompt: Any = {
        "prompt": "a<video>\nb<IMG_CONTEXT>?",
        "multi_modal_data": {"video": frames, "image": Image.fromarray(picture)},
    }
    params = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True)
    with LLM(str(folder), max_model_len=512, num_kv_blocks=256, dtype="float32") as llm:
        (output,) = llm.generate(prompt, params, use_tqdm=False)
    tile = f"<img>{'<IMG_CONTEXT>' * ROWS}</img>"
    said = "\n".join(f"Frame{number}: {tile}" for number in (1, 2, 3))
    tokens = tokenizer(*OF_VIDEOS)
    assert output.prompt_token_ids == tokens.encode(f"a{said}\nb{tile}?").ids
    own = GotOcr2ImageProcessorPil(size={"height": SIDE, "width": SIDE})
    shown = [Image.fromarray(frame) for frame in (*frames, picture)]
    given = {
        "input_ids": torch.tensor([output.prompt_token_ids]),
        "pixel_values": torch.from_numpy(np.asarray(own(shown)["pixel_values"])),
    }
    assert output.outputs[0].token_ids == continued(model, given, COUNT)[1]
