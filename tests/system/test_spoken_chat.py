"""A model to which a sound is a message, through a whole system: a transcript, and an answer in
chat, are those of transformers' processor and model, in any company, and after the worker died."""

from __future__ import annotations

import base64
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

from penstock.model.transcription_facts import SpokenChat
from testing.recordings import tones, wav
from testing.serving import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<|audio_pad|>",
)
TEMPLATE = (
    "{%- set ns = namespace(told='', sounds='', behind='') -%}"
    "{%- for m in messages -%}"
    "{%- for c in ([{'type': 'text', 'text': m.content}] if m.content is string else m.content) -%}"
    "{%- if m.role == 'system' -%}{%- set ns.told = ns.told + c.text -%}"
    "{%- elif m.role == 'assistant' -%}{%- set ns.behind = ns.behind + c.text -%}"
    "{%- elif c.type == 'audio' -%}"
    "{%- set ns.sounds = ns.sounds + '<|audio_start|><|audio_pad|><|audio_end|>' -%}"
    "{%- endif -%}{%- endfor -%}{%- endfor -%}"
    "{{- '<|im_start|>system\n' + ns.told + '<|im_end|>\n<|im_start|>user\n' + ns.sounds -}}"
    "{{- '<|im_end|>\n<|im_start|>assistant\n' + ns.behind -}}"
)
"""What the releases' own writes: only texts for the system and sounds count."""
COUNT = 12
SECONDS = 4
"""Of a window."""


def tokenizer(*pairs: str) -> Tokenizer:
    """Bytes, pairs of letters, and the release's special tokens; the mark is none."""
    texts = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *pairs]
    known = {text: number for number, text in enumerate(texts)}
    made = Tokenizer(models.BPE(vocab=known, merges=[(each[0], each[1]) for each in pairs]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    made.add_tokens([AddedToken("<asr_text>", special=False, normalized=False)])
    return made


def write_model(folder: Path, *pairs: str, seen: int = 200) -> Path:
    """A tiny Qwen3-ASR with random weights, in the form in which transformers saves it. pairs: of
    its tokenizer.  seen: windows whose vectors attend to one another."""
    import torch
    from transformers import (
        PreTrainedTokenizerFast,
        Qwen3ASRConfig,
        Qwen3ASRFeatureExtractor,
        Qwen3ASRForConditionalGeneration,
        Qwen3ASRProcessor,
    )

    tokens = tokenizer(*pairs)
    ids = tokens.get_vocab(with_added_tokens=True)
    config = Qwen3ASRConfig(
        text_config={
            "model_type": "qwen3",
            "vocab_size": len(ids),
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 512,
            "initializer_range": 0.3,
        },
        audio_config={
            "num_mel_bins": 16,
            "encoder_layers": 2,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "d_model": 48,
            "n_window_infer": seen,
            "downsample_hidden_size": 8,
            "output_dim": 64,
            "initializer_range": 0.3,
        },
        audio_token_id=ids["<|audio_pad|>"],
        pad_token_id=ids["<|endoftext|>"],
        eos_token_id=[ids["<|endoftext|>"], ids["<|im_end|>"]],
    )
    torch.manual_seed(11)
    model = Qwen3ASRForConditionalGeneration(config).eval()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokens,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens={
            "audio_token": "<|audio_pad|>",
            "audio_bos_token": "<|audio_start|>",
            "audio_eos_token": "<|audio_end|>",
        },
    )
    extractor = Qwen3ASRFeatureExtractor(feature_size=16, chunk_length=SECONDS)
    model.generation_config.eos_token_id = [ids["<|endoftext|>"], ids["<|im_end|>"]]
    model.save_pretrained(folder)
    Qwen3ASRProcessor(extractor, wrapped, chat_template=TEMPLATE).save_pretrained(folder)
    return folder


@cache
def theirs(folder: Path) -> tuple[Any, Any]:
    from transformers import Qwen3ASRForConditionalGeneration, Qwen3ASRProcessor

    model = Qwen3ASRForConditionalGeneration.from_pretrained(folder).eval()
    return model, Qwen3ASRProcessor.from_pretrained(folder)


def said_by_transformers(
    folder: Path, samples: np.ndarray, count: int, **asked: str
) -> tuple[list[int], list[int]]:
    """(the prompt's ids, what comes after it: the likeliest token each time, up to an end)."""
    import torch

    model, processor = theirs(folder)
    given = processor.apply_transcription_request(samples, **asked)
    with torch.no_grad():
        found = model.generate(**given, max_new_tokens=count, do_sample=False)
    prompt_token_ids = given["input_ids"][0].tolist()
    return prompt_token_ids, found[0, len(prompt_token_ids) :].tolist()


def heard(samples: np.ndarray) -> np.ndarray:
    """What a file of 16-bit samples holds of them."""
    return ((samples * 32767).astype("<i2") / 32768).astype(np.float32)


SHORT, LONG = tones(2.7, 1), tones(9.3, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("asr") / "tiny-qwen3-asr")


@pytest.fixture(scope="module")
def hearing(folder: Path) -> Iterator[Server]:
    with Server(str(folder), "--num-kv-blocks", "256", "--dtype", "float32") as server:
        yield server


def post(url: str, samples: np.ndarray, **fields: Any) -> httpx.Response:
    files = {"file": ("a.wav", wav(samples))}
    return httpx.post(f"{url}/v1/audio/transcriptions", files=files, data=fields, timeout=120)


def answered(url: str, samples: np.ndarray, told: str = "") -> dict[str, Any]:
    sound = {"data": base64.b64encode(wav(samples)).decode(), "format": "wav"}
    messages: list[dict[str, Any]] = [{"role": "system", "content": told}] if told else []
    messages.append(
        {"role": "user", "content": [{"type": "input_audio", "input_audio": sound}]},
    )
    body = {
        "messages": messages,
        "temperature": 0,
        "max_tokens": COUNT,
        "return_token_ids": True,
        "logprobs": True,
    }
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


@pytest.mark.parametrize("told", ["", "Names: Ada, Zuse."])
def test_answers_in_chat_are_those_of_transformers(
    folder: Path, hearing: Server, told: str
) -> None:
    asked = {"prompt": told} if told else {}
    prompt_token_ids, ids = said_by_transformers(folder, heard(SHORT), COUNT, **asked)
    reply = answered(hearing.url, SHORT, told)
    assert reply["prompt_token_ids"] == prompt_token_ids
    assert reply["choices"][0]["token_ids"] == ids


@pytest.mark.parametrize("asked", [{}, {"language": "de"}, {"language": "en", "prompt": "Ada"}])
def test_transcripts_are_those_of_transformers(
    folder: Path, hearing: Server, asked: dict[str, str]
) -> None:
    _, processor = theirs(folder)
    reply = post(hearing.url, SHORT, response_format="verbose_json", **asked).json()
    _, ids = said_by_transformers(folder, heard(SHORT), 400, **asked)
    (segment,) = reply["segments"]
    least = min(len(ids), len(segment["tokens"]))
    assert segment["tokens"][:least] == ids[:least]
    assert least > 3
    whole = processor.tokenizer.decode(segment["tokens"], skip_special_tokens=True)
    assert reply["text"] == whole.strip()
    assert (segment["start"], segment["end"]) == (0.0, 2.7)
    assert reply["language"] == {"de": "german", "en": "english"}.get(asked.get("language", ""), "")


def test_a_long_recording_is_cut_at_quiet_places(hearing: Server) -> None:
    asked = {"language": "en", "response_format": "verbose_json"}
    reply = post(hearing.url, LONG, **asked).json()
    segments = reply["segments"]
    assert len(segments) >= 3
    assert segments[0]["start"] == 0.0
    assert [each["end"] for each in segments[:-1]] == [each["start"] for each in segments[1:]]
    assert segments[-1]["end"] == 9.3
    assert all(each["end"] - each["start"] <= SECONDS for each in segments)
    assert "".join(each["text"] for each in segments).strip() == reply["text"]
    silent = np.concatenate([np.zeros(160_000, np.float32), SHORT])
    assert post(hearing.url, silent, **asked).json()["segments"][0]["start"] >= 6


def test_in_company_and_after_the_worker_died(hearing: Server) -> None:
    asked = [(SHORT, {}), (LONG, {"language": "en"}), (SHORT, {"temperature": "0.7", "seed": "3"})]
    alone = [post(hearing.url, samples, **each).json() for samples, each in asked]
    spoken = answered(hearing.url, SHORT)["choices"]
    with ThreadPoolExecutor(8) as pool:
        work = [pool.submit(post, hearing.url, samples, **each) for samples, each in asked * 2]
        chats = [pool.submit(answered, hearing.url, SHORT) for _ in range(2)]
        assert [each.result().json() for each in work] == alone * 2
        assert [each.result()["choices"] for each in chats] == [spoken] * 2
        work = [pool.submit(post, hearing.url, samples, **each) for samples, each in asked]
        os.kill(hearing.child("worker 0"), signal.SIGKILL)
        assert [each.result().json() for each in work] == alone


def test_what_it_does_and_does_not(hearing: Server) -> None:
    (model,) = httpx.get(f"{hearing.url}/v1/models").json()["data"]
    assert model["tasks"] == ["generate", "transcription"]
    files = {"file": ("a.wav", wav(SHORT))}
    reply = httpx.post(f"{hearing.url}/v1/audio/translations", files=files, timeout=60)
    assert (reply.status_code, "doesn't translate" in reply.text) == (400, True)
    timed = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}
    for fields, complaint in (
        (timed, "can't say when words are spoken"),
        ({"language": "tlh"}, "allowed: ar (arabic), cs (czech)"),
    ):
        reply = post(hearing.url, SHORT, **fields)
        assert (reply.status_code, complaint in reply.text) == (400, True), reply.text


def test_the_makers_own_folder_is_the_same_model(folder: Path, tmp_path: Path) -> None:
    """Its config.json has what transformers' has under thinker_config, and its tensors other
    names."""
    from safetensors.torch import load_file, save_file

    from penstock.prepare.from_hub_folder import read_hub_folder

    stated = json.loads((folder / "config.json").read_text())
    text, audio = stated["text_config"], stated["audio_config"]
    turned = {"mrope_section": [4, 2, 2], "mrope_interleaved": True, "interleaved": True}
    text |= {
        "model_type": "qwen3_asr_text",
        "tie_word_embeddings": stated["tie_word_embeddings"],
        "rope_scaling": {"rope_type": "default", "type": "default", **turned},
        "rope_theta": text.pop("rope_parameters")["rope_theta"],
    }
    audio |= {
        "model_type": "qwen3_asr_audio_encoder",
        "conv_chunksize": 500,
        "max_source_positions": 1500,
    }
    thinker = {
        "model_type": "qwen3_asr_thinker",
        "audio_config": audio,
        "text_config": text,
        "audio_token_id": stated["audio_token_id"],
        "audio_start_token_id": 259,
        "audio_end_token_id": 260,
        "user_token_id": 872,
        "initializer_range": 0.02,
        "dtype": "float32",
    }
    theirs_ = {
        "architectures": stated["architectures"],
        "model_type": "qwen3_asr",
        "support_languages": ["English", "German"],
        "thinker_config": thinker,
    }
    extractor = {"feature_extractor_type": "WhisperFeatureExtractor", "chunk_length": SECONDS}
    (tmp_path / "config.json").write_text(json.dumps(theirs_))
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({**extractor, "feature_size": 16, "hop_length": 160, "n_fft": 400})
    )
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        name = name.replace("model.audio_tower", "audio_tower")
        name = name.replace("model.multi_modal_projector.linear_", "audio_tower.proj")
        name = name.replace("model.language_model", "model")
        tensors[f"thinker.{name}"] = tensor
    save_file(tensors, tmp_path / "model.safetensors")
    ours, other = read_hub_folder(folder), read_hub_folder(tmp_path)
    assert other.config == ours.config
    assert other.media is not None
    assert ours.media is not None
    assert other.media.kinds == ours.media.kinds
    assert isinstance(other.media.transcription, SpokenChat)
    assert set(other.media.transcription.languages) == {"en", "de"}
    with Server(str(tmp_path), "--num-kv-blocks", "64", "--dtype", "float32") as server:
        _, ids = said_by_transformers(folder, heard(SHORT), 400, language="de")
        reply = post(server.url, SHORT, language="de", response_format="verbose_json").json()
        (segment,) = reply["segments"]
        assert segment["tokens"][:100] == ids[: len(segment["tokens"])][:100]
        assert len(segment["tokens"]) > 3


def write_pair(folder: Path, to: Path) -> list[str]:
    """Writes the folder as llama.cpp's two files, with its converter's template. Returns what
    the server is given."""
    import gguf

    from tests.worker.audio.test_mmproj_sounds import write_asr
    from tests.worker.models.gguf_writing import Conversion
    from tests.worker.vision.mmproj_writer import qwen3_asr_text, write_text_half, write_vocabulary

    def says(writer: gguf.GGUFWriter, config: Any) -> None:
        qwen3_asr_text(writer, config)
        write_vocabulary(writer, tokenizer("qz"), "<|im_end|>", "<|im_end|>")
        writer.add_chat_template(CONVERTED)

    text, mmproj = to / "text.gguf", to / "mmproj.gguf"
    model, _ = theirs(folder)
    write_text_half(text, model, how=Conversion(gguf.MODEL_ARCH.QWEN3VL, says))
    write_asr(mmproj, model)
    return [str(text), "--mmproj", str(mmproj)]


CONVERTED = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_two_gguf_files_hear_the_same(tmp_path: Path) -> None:
    """Transcripts and answers are transformers', in company, and after the worker died."""
    (tmp_path / "hub").mkdir()
    folder = write_model(tmp_path / "hub", "qz", seen=800)
    given = write_pair(folder, tmp_path)
    with Server(*given, "--num-kv-blocks", "256", "--dtype", "float32") as server:
        _, ids = said_by_transformers(folder, heard(SHORT), 400, language="de")
        asked = {"language": "de", "response_format": "verbose_json"}
        alone = post(server.url, SHORT, **asked).json()
        (segment,) = alone["segments"]
        least = min(len(ids), len(segment["tokens"]))
        assert segment["tokens"][:least] == ids[:least]
        assert least > 3
        told = "Names: Ada, Zuse."
        prompt_token_ids, ids = said_by_transformers(folder, heard(SHORT), COUNT, prompt=told)
        reply = answered(server.url, SHORT, told)
        assert reply["prompt_token_ids"] == prompt_token_ids
        # The file names one of the two tokens that end an answer.
        assert reply["choices"][0]["token_ids"][: len(ids)] == ids
        with ThreadPoolExecutor(4) as pool:
            work = [pool.submit(post, server.url, SHORT, **asked) for _ in range(3)]
            chat = pool.submit(answered, server.url, SHORT, told)
            os.kill(server.child("worker 0"), signal.SIGKILL)
            assert [each.result().json() for each in work] == [alone] * 3
            assert chat.result()["choices"] == reply["choices"]
