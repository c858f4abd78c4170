"""Chats with pictures and Phi-3-vision, from a folder with its makers' files to the answer: prompt
and answer are those of slow models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import LLM, SamplingParams
from tests.shared.media.media_tokenizer import tokenizer
from tests.shared.media.phi3_pictures import MARK, Phi3Pictures, Phi3Processor
from tests.shared.media.pictures import picture
from tests.system.hub_folders import of_user, write_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TEMPLATE = (
    "{% for message in messages %}{{'<|' + message['role'] + '|>' + '\n' + message['content'] + "
    "'<|end|>\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
"""Takes no parts, as the makers', and writes no BOS."""
TILE, PATCH, MOST = 16, 4, 4
WANTED = 8


def write_phi3(folder: Path) -> Any:
    """Writes the folder of a tiny Phi-3-vision. Returns the slow model."""
    import torch
    from transformers import CLIPVisionConfig, LlavaConfig, Phi3Config

    from tests.worker.vision.phi3_model import Phi3V

    tokens = tokenizer("<|user|>", "<|end|>", "<|assistant|>")
    ids = tokens.get_vocab(with_added_tokens=True)
    config = LlavaConfig(
        text_config=Phi3Config(
            vocab_size=len(ids),
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=512,
            initializer_range=0.25,
            bos_token_id=ids["<s>"],
            eos_token_id=ids["</s>"],
            pad_token_id=ids["</s>"],
        ),
        vision_config=CLIPVisionConfig(
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=3,
            num_attention_heads=4,
            image_size=TILE,
            patch_size=PATCH,
        ),
        image_token_index=ids[MARK],
    )
    torch.manual_seed(7)
    model = Phi3V(config).eval()
    pictures = Phi3Pictures(TILE, PATCH, MOST)
    write_folder(folder, model, pictures, tokens, template=TEMPLATE)
    return model


def test_chats_with_pictures(tmp_path: Path) -> None:
    """One, and three of which two are the same. BOS stands in front, and behind each picture."""
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path / "phi3"
    model, shown, small = write_phi3(folder), picture(70, 40), picture(20, 30, seed=1)

    one = of_user(shown, "what is it")
    three = of_user(shown, small, "and", shown, "all")
    sampling = SamplingParams(temperature=0.0, max_tokens=WANTED, ignore_eos=True)
    settings: dict[str, Any] = {"max_model_len": 512, "num_kv_blocks": 96, "dtype": "float32"}
    with LLM(str(folder), cache_dir=str(tmp_path / "cache"), **settings) as llm:
        ours = llm.chat([one, three, one], sampling)
        (text,) = llm.generate("abc", sampling)
        numbered = "<|user|>\n<|image_1|>\nwhat is it<|end|>\n<|assistant|>\n"
        given: Any = {"prompt": numbered, "multi_modal_data": {"image": shown}}
        (written,) = llm.generate(given, sampling)
    fast = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    assert text.prompt_token_ids[0] == fast.convert_tokens_to_ids("<s>")
    processor = Phi3Processor(Phi3Pictures(TILE, PATCH, MOST), fast, begins=True)
    turn = "<|user|>\n{}<|end|>\n<|assistant|>\n"
    expected = (
        (turn.format(f"{MARK}\nwhat is it"), [shown]),
        (turn.format(f"{MARK}\n{MARK}\nand\n{MARK}\nall"), [shown, small, shown]),
    )
    for (whole, pictures), found in zip(expected, ours, strict=False):
        theirs = processor(text=[whole], images=pictures)
        prompt = theirs["input_ids"][0].tolist()
        assert found.prompt_token_ids == prompt
        assert found.outputs[0].token_ids == answer_of(model, prompt, theirs)
    assert ours[2].outputs[0].token_ids == ours[0].outputs[0].token_ids
    assert written.prompt_token_ids == ours[0].prompt_token_ids


def answer_of(model: Any, prompt: list[int], processed: Any) -> list[int]:
    """The slow model's likeliest tokens."""
    import torch

    pictures = {
        "pixel_values": [torch.from_numpy(each) for each in processed["pixel_values"]],
        "forms": [(high // TILE, wide // TILE) for high, wide in processed["image_sizes"]],
    }
    given = list(prompt)
    for _ in range(WANTED):
        with torch.inference_mode():
            given.append(int(model(torch.tensor([given]), **pictures).logits[0, -1].argmax()))
    return given[len(prompt) :]
