"""Chats with pictures and Janus or MiniCPM-V, from a folder with its makers' files to the answer:
the prompt is the slow processor's, the answer that of a model with the same weights, which is
transformers' or a slow one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock import LLM, SamplingParams
from tests.shared.media.janus_pictures import MARK, MakersPictures, MakersProcessor
from tests.shared.media.media_tokenizer import JANUS, tokenizer
from tests.shared.media.minicpm_pictures import MARK as MINICPM_MARK
from tests.shared.media.minicpm_pictures import MiniCPMPictures, MiniCPMProcessor
from tests.shared.media.pictures import picture
from tests.system.hub_folders import TEXT_ENDS, of_user

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '<|User|>: ' + message['content'] + '\n\n' }}{% else %}"
    "{{ '<|Assistant|>: ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|Assistant|>:' }}{% endif %}"
)
"""The makers' prompt, which their folders have no template of, without the system's words."""
CHATML = (
    "{% for message in messages %}{{ '<s>' + message['role'] + '\n' + message['content'] + "
    "'</s>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)
"""MiniCPM-V's, with the tokenizer's own tokens around turns."""
SIDE, PATCH = 24, 6
WANTED = 8


def write_janus(folder: Path) -> Any:
    """Writes the folder of a tiny Janus. Returns transformers' model."""
    import torch
    from transformers import JanusConfig, JanusVisionConfig, JanusVQVAEConfig, LlamaConfig

    from tests.worker.vision.case import WIDE
    from tests.worker.vision.deepseek_vl_cases import DRAWS
    from tests.worker.vision.deepseek_vl_cases import JANUS as SEES
    from tests.worker.vision.janus_files import MakersJanus

    tokens = tokenizer(*JANUS, MARK)
    ids = tokens.get_vocab(with_added_tokens=True)
    text = WIDE | {"vocab_size": len(ids), "max_position_embeddings": 512}
    sees, draws = (
        {key: each for key, each in own.items() if key != "class"} for own in (SEES, DRAWS)
    )
    config = JanusConfig(
        text_config=LlamaConfig(**text),
        vision_config=JanusVisionConfig(**sees),
        vq_config=JanusVQVAEConfig(**draws),
        image_token_id=ids[MARK],
        tie_word_embeddings=False,
    )
    config._attn_implementation = "eager"
    torch.manual_seed(9)
    model = MakersJanus(config).eval()
    model.write(folder)
    MakersPictures(SIDE, PATCH).save_pretrained(folder)
    tokens.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(TEXT_ENDS))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return model


def test_chats_with_pictures(tmp_path: Path) -> None:
    """One, and two with text between them."""
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path / "janus"
    model, shown, high = write_janus(folder), picture(70, 41), picture(20, 57, seed=1)

    sampling = SamplingParams(temperature=0.0, max_tokens=WANTED, ignore_eos=True)
    settings: dict[str, Any] = {"max_model_len": 512, "num_kv_blocks": 96, "dtype": "float32"}
    with LLM(str(folder), cache_dir=str(tmp_path / "cache"), **settings) as llm:
        ours = llm.chat([of_user(shown, "what"), of_user(shown, "or", high, "both")], sampling)
    fast = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    processor = MakersProcessor(MakersPictures(SIDE, PATCH), fast, JANUS)
    turn = "<|User|>: {}\n\n<|Assistant|>:"
    expected = (
        (turn.format(f"{MARK}\nwhat"), [shown]),
        (turn.format(f"{MARK}\nor\n{MARK}\nboth"), [shown, high]),
    )
    for (whole, pictures), found in zip(expected, ours, strict=True):
        theirs = processor(text=[whole], images=pictures)
        prompt = theirs["input_ids"][0].tolist()
        assert found.prompt_token_ids == prompt
        assert found.outputs[0].token_ids == answer_of(model, prompt, theirs["pixel_values"])


def answer_of(model: Any, prompt: list[int], pixels: Any) -> list[int]:
    """transformers' likeliest tokens."""
    import torch

    given, shown = list(prompt), torch.from_numpy(pixels)
    for _ in range(WANTED):
        with torch.inference_mode():
            logits = model(torch.tensor([given]), pixel_values=shown).logits
        given.append(int(logits[0, -1].argmax()))
    return given[len(prompt) :]


def write_minicpm(folder: Path) -> Any:
    """Writes the folder of a tiny MiniCPM-V 2.6. Returns the slow model."""
    import torch
    from transformers import LlavaConfig, Qwen2Config, SiglipVisionConfig

    from tests.worker.vision.case import SEES
    from tests.worker.vision.minicpm_cases import WIDE, resampled
    from tests.worker.vision.resampler_model import QUERIES

    tokens = tokenizer("<unk>")
    ids = tokens.get_vocab(with_added_tokens=True)
    text = WIDE | {"vocab_size": len(ids), "max_position_embeddings": 512}
    config = LlavaConfig(
        text_config=Qwen2Config(**text),
        vision_config=SiglipVisionConfig(**SEES, image_size=28, patch_size=4),
        image_token_index=ids["<unk>"],
    )
    torch.manual_seed(9)
    model = resampled(config).eval()
    model.save_pretrained(folder)
    MiniCPMPictures(4, 32, QUERIES, most=4).save_pretrained(folder)
    tokens.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(TEXT_ENDS))
    (folder / "chat_template.jinja").write_text(CHATML)
    return model


def test_chats_with_numbered_slices(tmp_path: Path) -> None:
    """A large picture alone, and a small one before it in another line of the same turn."""
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path / "minicpm"
    model, large, small = write_minicpm(folder), picture(70, 41), picture(20, 31, seed=1)
    sampling = SamplingParams(temperature=0.0, max_tokens=WANTED, ignore_eos=True)
    settings: dict[str, Any] = {"max_model_len": 512, "num_kv_blocks": 96, "dtype": "float32"}
    with LLM(str(folder), cache_dir=str(tmp_path / "cache"), **settings) as llm:
        ours = llm.chat([of_user(large, "what"), of_user(small, "or", large, "both")], sampling)
    fast = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    pictures = MiniCPMPictures(4, 32, 6, most=4)
    processor, turn = MiniCPMProcessor(pictures, fast), "<s>user\n{}</s>\n<s>assistant\n"
    expected = (
        (turn.format(f"{MINICPM_MARK}\nwhat"), [large]),
        (turn.format(f"{MINICPM_MARK}\nor\n{MINICPM_MARK}\nboth"), [small, large]),
    )
    for (whole, shown), found in zip(expected, ours, strict=True):
        theirs = processor(text=[whole], images=shown)
        prompt = theirs["input_ids"][0].tolist()
        assert found.prompt_token_ids == prompt
        assert found.outputs[0].token_ids == answer_with_slices(model, prompt, theirs)


def answer_with_slices(model: Any, prompt: list[int], theirs: Any) -> list[int]:
    """The slow model's likeliest tokens."""
    import torch

    sizes = torch.from_numpy(theirs["target_sizes"])
    strips = torch.from_numpy(theirs["pixel_values"]).split([4 * int(n) for n in sizes.prod(1)], 3)
    given, marks = list(prompt), torch.tensor([prompt]) == model.config.image_token_index
    with torch.inference_mode():
        seen = [
            model.get_image_features(strip, size[None]).pooler_output[0]
            for strip, size in zip(strips, sizes, strict=True)
        ]
        for _ in range(WANTED):
            embedded = model.get_input_embeddings()(torch.tensor([given]))
            shown = torch.nn.functional.pad(marks, (0, len(given) - len(prompt)))
            embedded = embedded.masked_scatter(shown[..., None], torch.cat(seen))
            given.append(int(model(inputs_embeds=embedded).logits[0, -1].argmax()))
    return given[len(prompt) :]
