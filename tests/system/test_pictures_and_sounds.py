"""Phi-4-multimodal through a whole system, in its makers' chat template: pictures, sounds and both
in one prompt, with an adapter where a request names one. What it says is what transformers' model
says of what transformers' extractors make of the same files."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from testing.recordings import tones, wav
from testing.serving import Server
from tests.adapter_folders import random_factors, write_peft
from tests.system.test_spoken_chat import heard

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

IMAGE, AUDIO = "<|endoftext10|>", "<|endoftext11|>"
SPECIAL = ("<|endoftext|>", IMAGE, AUDIO, "<|user|>", "<|assistant|>", "<|end|>")
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
TILE, PATCH, MOST, BANDS = 28, 7, 6, 16
COUNT, RANK, ALPHA = 6, 4, 8.0
UNCLEAR = 1e-3
"""Difference of two logits that may come out the other way round, as sums have other orders."""
SOUND = tones(1.3, 1)


def picture() -> Image.Image:
    noise = np.random.default_rng(5).integers(0, 256, (40, 60, 3), np.uint8)
    return Image.fromarray(noise)


def tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with random weights, and an adapter of its decoder in a folder of its own."""
    import torch
    from transformers import Phi4MultimodalConfig, Phi4MultimodalForCausalLM

    made = tmp_path_factory.mktemp("phi4") / "tiny-phi4"
    tokens = tokenizer()
    ids = tokens.get_vocab(with_added_tokens=True)
    config = Phi4MultimodalConfig(
        vocab_size=len(ids),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        bos_token_id=ids["<|endoftext|>"],
        eos_token_id=[ids["<|end|>"]],
        pad_token_id=ids["<|endoftext|>"],
        vision_config={
            "hidden_size": 48,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "image_size": TILE,
            "patch_size": PATCH,
            "crop_size": TILE,
            "image_token_id": ids[IMAGE],
        },
        audio_config={
            "hidden_size": 32,
            "intermediate_size": 24,
            "num_blocks": 2,
            "num_attention_heads": 4,
            "ext_pw_out_channel": 32,
            "depthwise_separable_out_channel": 32,
            "nemo_conv_channels": 8,
            "input_size": BANDS,
            "bias_max_distance": 9,
            "audio_token_id": ids[AUDIO],
        },
    )
    torch.manual_seed(11)
    model = Phi4MultimodalForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "extensor" in name or "for_vision_speech" in name:
                parameter.normal_(0, 0.5)
    model.generation_config.eos_token_id = ids["<|end|>"]
    model.save_pretrained(made)
    tokens.save(str(made / "tokenizer.json"))
    said = {"eos_token": "<|end|>", "chat_template": TEMPLATE}
    (made / "tokenizer_config.json").write_text(json.dumps(said))
    both = {
        "image_processor_type": "Phi4MMImageProcessor",
        "feature_extractor_type": "Phi4MMAudioFeatureExtractor",
        "processor_class": "Phi4MMProcessor",
        "size": {"height": TILE, "width": TILE},
        "patch_size": PATCH,
        "dynamic_hd": MOST,
        "feature_size": BANDS,
        "audio_compression_rate": 8,
    }
    (made / "preprocessor_config.json").write_text(json.dumps(both))
    shapes = {
        name: (each.out_features, each.in_features)
        for name, each in model.named_modules()
        if name.endswith(("qkv_proj", "gate_up_proj", "o_proj")) and "extend" not in name
    }
    write_peft(made / "vision-lora", random_factors(shapes, RANK, 1, 0.3), alpha=ALPHA)
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    flags = ("--num-kv-blocks", "512", "--dtype", "float32", "--max-lora-rank", str(RANK))
    adapter = f"vision={folder / 'vision-lora'}"
    with Server(str(folder), *flags, "--enable-lora", "--lora-modules", adapter) as server:
        yield server


@cache
def theirs(folder: Path, adapter: str) -> Any:
    """transformers' model, with the adapter merged in where one is named. With `sdpa`, 5.17 lets a
    patch see only those before it where a picture fills its sheet."""
    import torch
    from safetensors.torch import load_file
    from transformers import Phi4MultimodalForCausalLM

    model = Phi4MultimodalForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    factors = load_file(folder / adapter / "adapter_model.safetensors") if adapter else {}
    for name, down in factors.items():
        if not name.endswith(".lora_A.weight"):
            continue
        up = factors[name.replace("lora_A", "lora_B")]
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        with torch.no_grad():
            model.get_submodule(module).weight += ALPHA / RANK * (up @ down)
    return model


def media_of(kinds: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """A prompt's placeholders, each with the line break that stands behind an item where a template
    takes no parts, and what transformers' model is given for them."""
    import torch
    from transformers import Phi4MultimodalFeatureExtractor

    from tests.shared.media.phi4_pictures import Phi4Pictures

    text, given = "", {}
    for kind in kinds:
        if kind == "image":
            made = Phi4Pictures(TILE, PATCH, MOST)(picture())
            side = TILE // PATCH // 2
            # Their count of the whole's embeddings is a constant, for larger tiles.
            rows = made["num_img_tokens"][0] - 256 - 16 + side * (side + 1)
            names = ("image_pixel_values", "image_sizes", "image_attention_mask")
            text += f"{IMAGE * rows}\n"
            given |= {name: torch.as_tensor(made[name]) for name in names}
        else:
            extractor = Phi4MultimodalFeatureExtractor(feature_size=BANDS)
            found = extractor(heard(SOUND), sampling_rate=16_000, return_tensors="pt")
            names = ("audio_input_features", "audio_embed_sizes")
            text += f"{AUDIO * int(found['audio_embed_sizes'][0])}\n"
            given |= {name: found[name] for name in names}
    return text, given


def said_by_transformers(
    folder: Path, kinds: tuple[str, ...], adapter: str
) -> tuple[list[int], list[int]]:
    """The prompt's ids; and the likeliest token each time, up to where two are as good as equally
    likely, or to a placeholder, which transformers would take for an item."""
    import torch

    model = theirs(folder, adapter)
    text, given = media_of(kinds)
    ids = tokenizer().encode(f"<|user|>{text}What is it?<|end|><|assistant|>").ids
    said: list[int] = []
    with torch.inference_mode():
        while len(said) < COUNT:
            best = model(torch.tensor([ids + said]), **given).logits[0, -1].topk(2)
            if best.values[0] - best.values[1] < UNCLEAR:
                break
            said.append(int(best.indices[0]))
            if said[-1] in (tokenizer().token_to_id(each) for each in SPECIAL):
                break
    return ids, said


def parts_of(kinds: tuple[str, ...]) -> list[dict[str, Any]]:
    shown = io.BytesIO()
    picture().save(shown, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(shown.getvalue()).decode()}"
    sound = {"data": base64.b64encode(wav(SOUND)).decode(), "format": "wav"}
    known = {
        "image": {"type": "image_url", "image_url": {"url": url}},
        "audio": {"type": "input_audio", "input_audio": sound},
    }
    return [*(known[kind] for kind in kinds), {"type": "text", "text": "What is it?"}]


@pytest.mark.parametrize("adapter", ["", "vision-lora"])
@pytest.mark.parametrize("kinds", [("image",), ("audio",), ("image", "audio")], ids="-".join)
def test_served_answers_to_pictures_and_sounds_are_those_of_transformers(
    folder: Path, server: Server, kinds: tuple[str, ...], adapter: str
) -> None:
    prompt, ids = said_by_transformers(folder, kinds, adapter)
    body = {
        "model": "vision" if adapter else folder.name,
        "messages": [{"role": "user", "content": parts_of(kinds)}],
        "temperature": 0,
        "max_tokens": COUNT,
        "return_token_ids": True,
    }
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    found = reply.json()
    assert found["prompt_token_ids"] == prompt
    assert found["choices"][0]["token_ids"][: len(ids)] == ids
    assert len(ids) > 1
