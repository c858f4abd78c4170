"""A chat with a picture and Molmo 2, from a folder with its makers' files to the answer: prompt and
answer are those of slow models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import LLM, SamplingParams
from penstock.errors import InvalidRequest
from tests.shared.media.media_tokenizer import tokenizer
from tests.shared.media.molmo_pictures import MARK, MOLMO, MolmoPictures, MolmoProcessor
from tests.shared.media.pictures import picture
from tests.system.hub_folders import write_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TEMPLATE = (
    "{% for m in messages %}{% for c in m['content'] %}{% if c['type'] == 'image' %}<|image|>"
    "{% endif %}{% endfor %}{% endfor %}"
    "{% for m in messages %}{{ m['role'] }}:{% for c in m['content'] %}"
    "{% if c['type'] == 'text' %}{{ c['text'] }}{% endif %}{% endfor %};{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""Shows pictures before all else, as the makers' does, and writes no BOS."""
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
    }
    torch.manual_seed(7)
    model = Molmo2(config).eval()
    model.generation_config = model.decoder.generation_config
    write_folder(folder, model, MolmoPictures(20, 4), tokens, template=TEMPLATE)
    return model


def test_a_chat_with_a_picture(tmp_path: Path) -> None:
    import torch
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path / "molmo"
    model, shown = write_molmo(folder), picture(70, 40)
    part = {"type": "image_pil", "image_pil": shown}
    question = [{"role": "user", "content": [{"type": "text", "text": "what is it"}, part]}]
    sampling = SamplingParams(max_tokens=WANTED, temperature=0.0, ignore_eos=True)
    settings: dict[str, Any] = {"max_model_len": 256, "num_kv_blocks": 64, "dtype": "float32"}
    with LLM(str(folder), cache_dir=str(tmp_path / "cache"), **settings) as llm:
        (ours,) = llm.chat(question, sampling)
        two = [{"role": "user", "content": [part, part, {"type": "text", "text": "both"}]}]
        with pytest.raises(InvalidRequest, match="at most 1 are accepted with this model"):
            llm.chat(two, sampling)
        (text,) = llm.generate("abc", sampling)
    fast = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    theirs = MolmoProcessor(MolmoPictures(20, 4), fast)(
        text=[f"<s>{MARK}user:what is it;assistant:"], images=[shown]
    )
    prompt = theirs["input_ids"][0].tolist()
    assert ours.prompt_token_ids == prompt
    assert text.prompt_token_ids[0] == prompt[0] == fast.convert_tokens_to_ids("<s>")
    first, patch = model.config.text_config.vocab_size, model.config.image_token_index
    tokens = [token for token in prompt if token >= first]
    squares = iter(theirs["pooled"][0])
    rows = [next(squares) if token == patch else [] for token in tokens]
    made = {
        "pixel_values": [torch.from_numpy(theirs["pixel_values"][0])],
        "pooled": [torch.tensor([row + [-1] * (4 - len(row)) for row in rows])],
        "marks": [torch.tensor([-1 if token == patch else token - first for token in tokens])],
    }
    given = [patch if token >= first else token for token in prompt]
    for token in ours.outputs[0].token_ids:
        with torch.inference_mode():
            logits = model(torch.tensor([given]), **made).logits[0, -1]
        assert token == int(logits.argmax())
        given.append(token)
