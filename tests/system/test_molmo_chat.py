"""Pictures and videos for Molmo 2, from a folder with its makers' files to the answer: prompt and
answer are those of slow models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import LLM, SamplingParams
from tests.shared.media.media_tokenizer import tokenizer
from tests.shared.media.molmo_pictures import (
    MARK,
    MOLMO,
    VIDEO_SETTINGS,
    MolmoPictures,
    MolmoProcessor,
    frames_text,
    resized,
)
from tests.shared.media.pictures import picture
from tests.system.hub_folders import write_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TEMPLATE = (
    "{% set n = namespace(count=0) %}{% for m in messages %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}{% set n.count = n.count + 1 %}"
    "{% if n.count > 1 %}Picture {{ n.count }}{% endif %}<|image|>"
    "{% endif %}{% endfor %}{% endfor %}"
    "{% for m in messages %}{{ m['role'] }}:{% for c in m['content'] %}"
    "{% if c['type'] == 'text' %}{{ c['text'] }}{% endif %}{% endfor %};{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""Shows pictures before all else, with text between them, and writes no BOS."""
WANTED = 8


def write_molmo(folder: Path) -> Any:
    """Writes the folder of a tiny Molmo 2. Returns the slow model."""
    import torch
    from transformers import LlavaConfig, Qwen3Config, SiglipVisionConfig

    from tests.worker.vision.pooled_model import Molmo2

    tokens = tokenizer(*MOLMO)
    ids = tokens.get_vocab(with_added_tokens=True)
    first = ids["<im_start>"]
    config = LlavaConfig(
        text_config=Qwen3Config(
            vocab_size=first,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=512,
            initializer_range=0.25,
        ),
        vision_config=SiglipVisionConfig(
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            image_size=20,
            patch_size=4,
        ),
        image_token_index=ids["<im_patch>"],
    )
    config.marks = {
        "image_patch_id": ids["<im_patch>"] - first,
        "image_start_token_id": 0,
        "image_end_token_id": ids["<im_end>"] - first,
        "image_col_id": ids["<im_col>"] - first,
        "low_res_image_start_token_id": ids["<low_res_im_start>"] - first,
        "frame_start_token_id": ids["<frame_start>"] - first,
        "frame_end_token_id": ids["<frame_end>"] - first,
    }
    torch.manual_seed(7)
    model = Molmo2(config).eval()
    model.generation_config = model.decoder.generation_config
    write_folder(folder, model, MolmoPictures(20, 4), tokens, template=TEMPLATE)
    return model


def test_chats_with_pictures(tmp_path: Path) -> None:
    """One, and three of which two are the same."""
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path / "molmo"
    model, shown, small = write_molmo(folder), picture(70, 40), picture(20, 30, seed=1)
    part, other = ({"type": "image_pil", "image_pil": each} for each in (shown, small))
    one = [{"role": "user", "content": [{"type": "text", "text": "what is it"}, part]}]
    three = [{"role": "user", "content": [part, other, {"type": "text", "text": "all"}, part]}]
    sampling = SamplingParams(max_tokens=WANTED, temperature=0.0, ignore_eos=True)
    settings: dict[str, Any] = {"max_model_len": 256, "num_kv_blocks": 64, "dtype": "float32"}
    with LLM(str(folder), cache_dir=str(tmp_path / "cache"), **settings) as llm:
        ours = llm.chat([one, three, one], sampling)
        (text,) = llm.generate("abc", sampling)
    fast = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    assert text.prompt_token_ids[0] == fast.convert_tokens_to_ids("<s>")
    asked = (
        (f"<s>{MARK}user:what is it;assistant:", [shown]),
        (f"<s>{MARK}Picture 2{MARK}Picture 3{MARK}user:all;assistant:", [shown, small, shown]),
    )
    for (whole, pictures), found in zip(asked, ours, strict=False):
        theirs = MolmoProcessor(MolmoPictures(20, 4), fast)(text=[whole], images=pictures)
        prompt = theirs["input_ids"][0].tolist()
        assert found.prompt_token_ids == prompt
        assert found.outputs[0].token_ids == answer_of(model, prompt, theirs)
    assert ours[2].outputs[0].token_ids == ours[0].outputs[0].token_ids


def test_a_video_between_texts(tmp_path: Path) -> None:
    """Four frames of another form, which stand after their times."""
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path / "molmo"
    model = write_molmo(folder)
    (folder / "video_preprocessor_config.json").write_text(json.dumps(VIDEO_SETTINGS))
    frames = np.random.default_rng(3).integers(0, 256, (4, 30, 44, 3), np.uint8)
    given = {"prompt": "ab<|video|>what?", "multi_modal_data": {"video": (frames, {"fps": 2.5})}}
    sampling = SamplingParams(max_tokens=WANTED, temperature=0.0, ignore_eos=True)
    settings: dict[str, Any] = {"max_model_len": 256, "num_kv_blocks": 64, "dtype": "float32"}
    with LLM(str(folder), cache_dir=str(tmp_path / "cache"), **settings) as llm:
        found, again = llm.generate([given, given], sampling)
    fast = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    text = frames_text([0.0, 0.4, 0.8, 1.2], 2, 2)
    prompt = fast.encode(f"<s>ab{text}what?", add_special_tokens=False)
    assert found.prompt_token_ids == again.prompt_token_ids == prompt
    true = answer_about(model, prompt, frames)
    assert found.outputs[0].token_ids == again.outputs[0].token_ids == true


def answer_about(model: Any, prompt: list[int], frames: np.ndarray) -> list[int]:
    """The slow model's likeliest tokens, of a prompt with one video."""
    import torch

    first, patch = model.config.text_config.vocab_size, model.config.image_token_index
    pictures = MolmoPictures(20, 4, pool=(3, 3))
    squares, pixels = [], []
    for number, frame in enumerate(frames):
        seen = resized(frame, (20, 20)).astype(np.float32) / 255
        pixels.append(((seen - np.float32(0.5)) / np.float32(0.5)).transpose(2, 0, 1))
        places = {(at // 5, at % 5): 25 * number + at for at in range(25)}
        squares += [each for line in pictures.squares(places, (5, 5)) for each in line]
    own = [token for token in prompt if token >= first]
    rows = [squares.pop(0) if token == patch else [] for token in own]
    made: dict[str, Any] = {
        "pixel_values": [torch.from_numpy(np.stack(pixels))],
        "pooled": [torch.tensor([row + [-1] * (9 - len(row)) for row in rows])],
        "marks": [torch.tensor([-1 if token == patch else token - first for token in own])],
    }
    given = [patch if token >= first else token for token in prompt]
    for _ in range(WANTED):
        with torch.inference_mode():
            given.append(int(model(torch.tensor([given]), **made).logits[0, -1].argmax()))
    return given[len(prompt) :]


def answer_of(model: Any, prompt: list[int], processed: Any) -> list[int]:
    """The slow model's likeliest tokens."""
    import torch

    first, patch = model.config.text_config.vocab_size, model.config.image_token_index
    end = model.marks["image_end_token_id"]
    tokens = iter([token for token in prompt if token >= first])
    made: dict[str, Any] = {"pixel_values": [], "pooled": [], "marks": []}
    for pixels, pooled in zip(processed["pixel_values"], processed["pooled"], strict=True):
        squares, rows, marks = list(pooled), [], list[int]()
        while marks.count(end) < 2:  # of the whole, and of the crops
            token = next(tokens)
            square = squares.pop(0) if token == patch else []
            rows.append(square + [-1] * (4 - len(square)))
            marks.append(-1 if token == patch else token - first)
        made["pixel_values"].append(torch.from_numpy(pixels))
        made["pooled"].append(torch.tensor(rows))
        made["marks"].append(torch.tensor(marks))
    given = [patch if token >= first else token for token in prompt]
    for _ in range(WANTED):
        with torch.inference_mode():
            given.append(int(model(torch.tensor([given]), **made).logits[0, -1].argmax()))
    return given[len(prompt) :]
