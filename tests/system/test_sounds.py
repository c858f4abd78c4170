"""Sounds through a whole system: what is said of them is what transformers says, over HTTP and in
the library, and after a worker died under it."""

from __future__ import annotations

import base64
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from penstock import LLM, SamplingParams
from testing.serving import Server
from tests.gateway.media import audio, text
from tests.shared.media.sounds import RATE, saved_sound, sound
from tests.system.hearing_models import heard_by_transformers, write_qwen2_audio

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COUNT = 12
"""Tokens of an answer."""
MARK = "<|audio_bos|><|AUDIO|><|audio_eos|>\n"
SHORT, LONG = sound(0.4, seed=1), sound(1.9, seed=2)
PROMPT = f"user:xyAudio 1: {MARK}zAudio 2: {MARK};assistant:"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2_audio(tmp_path_factory.mktemp("qwen2-audio") / "tiny-qwen2-audio")


@pytest.fixture(scope="module")
def wanted(folder: Path) -> tuple[list[int], list[int]]:
    return heard_by_transformers(folder, PROMPT, [SHORT, LONG], COUNT)


@pytest.fixture(scope="module")
def hearing(folder: Path) -> Iterator[Server]:
    flags = ("--max-model-len", "512", "--num-kv-blocks", "256", "--dtype", "float32")
    with Server(str(folder), *flags) as server:
        yield server


def file(samples: Any, kind: str = "WAV", subtype: str | None = "FLOAT") -> bytes:
    return saved_sound(samples, kind, subtype=subtype)


def ask(server: Server, **more: Any) -> dict[str, Any]:
    content = [text("xy"), audio(file(SHORT)), text("z"), audio(file(LONG))]
    body = {
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": COUNT,
        "ignore_eos": True,
        "return_token_ids": True,
        **more,
    }
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def test_served_answers_to_sounds_are_those_of_transformers(
    hearing: Server, wanted: tuple[list[int], list[int]]
) -> None:
    for more in ({}, {"cache_salt": "again"}):
        reply = ask(hearing, **more)
        assert reply["prompt_token_ids"] == wanted[0]
        assert reply["choices"][0]["token_ids"] == wanted[1]


def test_openais_client_sends_a_sound(hearing: Server) -> None:
    client = OpenAI(base_url=f"{hearing.url}/v1", api_key="any")
    data = base64.b64encode(file(SHORT, "FLAC", None)).decode()
    reply = client.chat.completions.create(
        model=hearing.model,
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is it?"},
                    {"type": "input_audio", "input_audio": {"data": data, "format": "flac"}},  # type: ignore[typeddict-item]
                ],
            }
        ],
        max_tokens=4,
    )
    assert reply.usage is not None
    assert reply.usage.prompt_tokens > 10


def test_a_killed_worker_changes_no_token(
    hearing: Server, wanted: tuple[list[int], list[int]]
) -> None:
    os.kill(hearing.child("worker 0"), signal.SIGKILL)
    assert ask(hearing)["choices"][0]["token_ids"] == wanted[1]


def test_the_library_hears_the_same(folder: Path, wanted: tuple[list[int], list[int]]) -> None:
    params = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True)
    with LLM(str(folder), max_model_len=512, num_kv_blocks=128, dtype="float32") as llm:
        sounds = [(SHORT, RATE), (LONG, RATE)]
        (output,) = llm.generate({"prompt": PROMPT, "multi_modal_data": {"audio": sounds}}, params)
        assert output.prompt_token_ids == wanted[0]
        assert list(output.outputs[0].token_ids) == wanted[1]
