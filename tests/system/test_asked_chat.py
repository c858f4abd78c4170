"""A model that is asked for a transcript in its own chat template, through a whole system: what it
says is what transformers' model says of the same prompt, in any company, and after the worker
died."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from penstock.media.magnitudes import paired_mel
from penstock.model.sound_facts import PairedMel
from penstock.prepare.transcription import ASKING, TRANSLATING
from testing.recordings import tones, wav
from testing.serving import Server
from tests.system.test_spoken_chat import COUNT, answered, heard, post

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SPECIAL = ("<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>", "<|audio|>")
TEMPLATE = (
    "{%- for m in messages -%}"
    "{{- '<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content + '<|end_of_text|>\n' -}}"
    "{%- endfor -%}"
    "{{- '<|start_of_role|>assistant<|end_of_role|>' if add_generation_prompt -}}"
)
MEL = PairedMel(
    sampling_rate=16_000,
    bins=16,
    frame=400,
    n_fft=512,
    hop=160,
    window=15,
    queries=3,
    seconds=30,
)
UNCLEAR = 1e-3
"""Difference of two logits that may come out the other way round, as sums have other orders."""
SHORT, LONG = tones(2.7, 1), tones(33.0, 2)


def tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Granite Speech with random weights. What its feature extractor says is written by
    hand: transformers' own needs torchaudio."""
    import torch
    from transformers import GraniteSpeechConfig, GraniteSpeechForConditionalGeneration

    made = tmp_path_factory.mktemp("granite") / "tiny-granite-speech"
    tokens = tokenizer()
    ids = tokens.get_vocab(with_added_tokens=True)
    config = GraniteSpeechConfig(
        text_config={
            "model_type": "granite",
            "vocab_size": len(ids),
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 1024,
            "attention_multiplier": 0.25,
            "initializer_range": 0.3,
        },
        encoder_config={
            "input_dim": 32,
            "num_layers": 2,
            "hidden_dim": 48,
            "num_heads": 4,
            "output_dim": 12,
            "context_size": 50,
            "max_pos_emb": 64,
            "conv_kernel_size": 7,
            "initializer_range": 0.3,
        },
        projector_config={
            "model_type": "blip_2_qformer",
            "hidden_size": 48,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "encoder_hidden_size": 48,
            "cross_attention_frequency": 1,
            "initializer_range": 0.3,
        },
        audio_token_index=ids["<|audio|>"],
        has_lora_adapter=False,
        eos_token_id=ids["<|end_of_text|>"],
        pad_token_id=ids["<|end_of_text|>"],
    )
    torch.manual_seed(11)
    model = GraniteSpeechForConditionalGeneration(config).eval()
    model.generation_config.eos_token_id = ids["<|end_of_text|>"]
    model.save_pretrained(made)
    tokens.save(str(made / "tokenizer.json"))
    said = {"eos_token": "<|end_of_text|>", "chat_template": TEMPLATE}
    (made / "tokenizer_config.json").write_text(json.dumps(said))
    sizes = {"n_fft": 512, "win_length": 400, "hop_length": 160, "n_mels": 16}
    extractor = {
        "feature_extractor_type": "GraniteSpeechFeatureExtractor",
        "melspec_kwargs": {"sample_rate": 16_000, **sizes},
        "processor_class": "GraniteSpeechProcessor",
        "projector_downsample_rate": 5,
        "projector_window_size": 15,
        "sampling_rate": 16_000,
    }
    (made / "preprocessor_config.json").write_text(json.dumps(extractor))
    return made


@pytest.fixture(scope="module")
def hearing(folder: Path) -> Iterator[Server]:
    with Server(str(folder), "--num-kv-blocks", "512", "--dtype", "float32") as server:
        yield server


@cache
def theirs(folder: Path) -> Any:
    from transformers import GraniteSpeechForConditionalGeneration

    return GraniteSpeechForConditionalGeneration.from_pretrained(folder).eval()


def said_by_transformers(
    folder: Path, samples: np.ndarray, asked: str, count: int
) -> tuple[list[int], list[int]]:
    """(the prompt's ids, what comes after it: the likeliest token each time, up to an end, to where
    two are as good as equally likely, or to a placeholder, behind which transformers goes on from
    another token's embedding)."""
    import torch

    model, tokens = theirs(folder), tokenizer()
    mel = torch.from_numpy(paired_mel(MEL, samples)[0].T.reshape(1, -1, 2 * MEL.bins).copy())
    rows = MEL.rows(len(samples))
    text = f"<|start_of_role|>user<|end_of_role|>{'<|audio|>' * rows}{asked}<|end_of_text|>\n"
    ids = tokens.encode(f"{text}<|start_of_role|>assistant<|end_of_role|>").ids
    given = torch.tensor([ids])
    with torch.no_grad():
        found = model.generate(
            input_ids=given,
            attention_mask=torch.ones_like(given),
            input_features=mel,
            input_features_mask=torch.ones(1, rows, dtype=torch.bool),
            max_new_tokens=count,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
        )
    best = torch.stack(found.logits)[:, 0].topk(2).values
    unclear = (best[:, 0] - best[:, 1] < UNCLEAR).nonzero()
    said = found.sequences[0, len(ids) :]
    placed = (said == model.config.audio_token_id).nonzero() + 1
    end = min(int(each[0]) for each in (unclear, placed, torch.tensor([len(said)])) if len(each))
    return ids, said[:end].tolist()


def test_an_answer_in_chat_is_that_of_transformers(folder: Path, hearing: Server) -> None:
    prompt_token_ids, ids = said_by_transformers(folder, heard(SHORT), "", COUNT)
    reply = answered(hearing.url, SHORT)
    assert reply["prompt_token_ids"] == prompt_token_ids
    assert reply["choices"][0]["token_ids"][: len(ids)] == ids
    assert len(ids) > 3


TASKS = [("transcriptions", ASKING), ("translations", TRANSLATING)]


@pytest.mark.parametrize(("task", "asked"), TASKS)
def test_transcripts_and_translations_are_those_of_transformers(
    folder: Path, hearing: Server, task: str, asked: str
) -> None:
    files, data = {"file": ("a.wav", wav(SHORT))}, {"response_format": "verbose_json"}
    url = f"{hearing.url}/v1/audio/{task}"
    reply = httpx.post(url, files=files, data=data, timeout=120).json()
    _, ids = said_by_transformers(folder, heard(SHORT), asked, 200)
    (segment,) = reply["segments"]
    assert segment["tokens"][: len(ids)] == ids
    assert len(ids) > 3
    assert (segment["start"], segment["end"]) == (0.0, 2.7)


def test_in_company_and_after_the_worker_died(hearing: Server) -> None:
    asked = [(SHORT, {}), (LONG, {"language": "en", "response_format": "verbose_json"})]
    alone = [post(hearing.url, samples, **each).json() for samples, each in asked]
    assert len(alone[1]["segments"]) == 2
    spoken = answered(hearing.url, SHORT)["choices"]
    with ThreadPoolExecutor(8) as pool:
        work = [pool.submit(post, hearing.url, samples, **each) for samples, each in asked * 2]
        chats = [pool.submit(answered, hearing.url, SHORT) for _ in range(2)]
        assert [each.result().json() for each in work] == alone * 2
        assert [each.result()["choices"] for each in chats] == [spoken] * 2
        work = [pool.submit(post, hearing.url, samples, **each) for samples, each in asked]
        os.kill(hearing.child("worker 0"), signal.SIGKILL)
        assert [each.result().json() for each in work] == alone


def test_what_it_does_not(hearing: Server) -> None:
    for fields, complaint in (
        ({"prompt": "Ada"}, "prompt: this model takes none"),
        ({"language": "tlh"}, "allowed: de (german), en (english)"),
    ):
        reply = post(hearing.url, SHORT, **fields)
        assert (reply.status_code, complaint in reply.text) == (400, True), reply.text
