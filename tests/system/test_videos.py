"""Videos through a whole system: what is said of them is what transformers says, also after a
process died under it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from penstock import LLM, SamplingParams
from penstock.formats.fields import Fields
from penstock.forms.fixed import FixedFrames
from penstock.forms.patches import VideoFrames
from penstock.prepare.media import read_media
from testing.serving import Server
from tests.shared.media.pictures import saved
from tests.shared.media.videos import noise
from tests.system.killed_streams import check_a_killed_stream
from tests.system.watching_models import (
    SIDE,
    said_by_transformers,
    said_of_frames,
    write_onevision,
    write_qwen,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COUNT = 10
"""Tokens of an answer."""
FLAGS = ("--max-model-len", "512", "--num-kv-blocks", "256", "--dtype", "float32")
WORDS = "What happens?"
SHOWN = "<|vision_start|><|video_pad|><|vision_end|>"
FRAMES = [noise(4, 32, 40, seed) for seed in (1, 2)]
"""Frames of sizes that aren't resized."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen(tmp_path_factory.mktemp("qwen") / "tiny-qwen")


@pytest.fixture(scope="module")
def watching(folder: Path) -> Iterator[Server]:
    with Server(str(folder), *FLAGS) as server:
        yield server


def part(frames: np.ndarray) -> dict[str, Any]:
    files = [saved(Image.fromarray(frame)) for frame in frames]
    url = ",".join(base64.b64encode(file).decode() for file in files)
    return {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{url}"}}


def messages(*frames: np.ndarray) -> list[dict[str, Any]]:
    content = [*map(part, frames), {"type": "text", "text": WORDS}]
    return [{"role": "user", "content": content}]


def test_served_answers_to_videos_are_those_of_transformers(watching: Server, folder: Path) -> None:
    values = Fields(json.loads((folder / "config.json").read_text()), "config.json")
    facts = read_media(folder, values, (folder / "tokenizer.json").read_bytes())
    assert facts is not None
    video = facts.kinds["video"].preparation
    assert isinstance(video, VideoFrames)
    answers = []
    for shown in ([FRAMES[0]], [FRAMES[1]], FRAMES, [FRAMES[0]]):
        given = {"messages": messages(*shown), "temperature": 0, "max_tokens": COUNT}
        given |= {"ignore_eos": True, "return_token_ids": True}
        reply = httpx.post(f"{watching.url}/v1/chat/completions", json=given, timeout=120).json()
        prompt_token_ids = reply["prompt_token_ids"]
        rows = len(shown) * (2 * 4 * 5 + 2)  # and a token on either side
        assert len(prompt_token_ids) == rows + len(f"user:{WORDS};assistant:")
        ids = reply["choices"][0]["token_ids"]
        assert ids == said_by_transformers(folder, prompt_token_ids, video, shown, COUNT)
        answers.append(ids)
    assert answers[0] == answers[3] != answers[1]


def test_onevision_says_of_frames_what_transformers_says(tmp_path: Path) -> None:
    """Over HTTP and in the library. The frames have the tower's size already."""
    folder = write_onevision(tmp_path / "tiny-onevision")
    frames = noise(3, SIDE, SIDE, 5)
    given = {"messages": messages(frames), "temperature": 0, "max_tokens": COUNT}
    given |= {"ignore_eos": True, "return_token_ids": True}
    with Server(str(folder), *FLAGS) as server:
        reply = httpx.post(f"{server.url}/v1/chat/completions", json=given, timeout=120).json()
    values = Fields(json.loads((folder / "config.json").read_text()), "config.json")
    facts = read_media(folder, values, (folder / "tokenizer.json").read_bytes())
    assert facts is not None
    video = facts.kinds["video"].preparation
    assert isinstance(video, FixedFrames)
    prompt_token_ids = reply["prompt_token_ids"]
    assert len(prompt_token_ids) == 3 * 3 * 3 + 1 + len(f"user:{WORDS};assistant:")
    pixels = video.inputs({"frames": frames})["pixel_values"]
    ids = reply["choices"][0]["token_ids"]
    assert ids == said_of_frames(folder, prompt_token_ids, pixels, COUNT)
    params = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True)
    prompt: Any = {
        "prompt": f"user:<|video_pad|>{WORDS};assistant:",
        "multi_modal_data": {"video": frames},
    }
    with LLM(str(folder), max_model_len=512, num_kv_blocks=256, dtype="float32") as llm:
        (output,) = llm.generate(prompt, params, use_tqdm=False)
    assert output.outputs[0].token_ids == ids


@pytest.mark.parametrize("victim", ["worker 0", "engine"])
def test_a_stream_about_videos_goes_on_when_a_process_is_killed(
    watching: Server, victim: str
) -> None:
    check_a_killed_stream(watching, victim, messages(*FRAMES), 48)


def test_the_library_says_the_same(folder: Path, watching: Server) -> None:
    given = {"messages": messages(*FRAMES), "temperature": 0, "max_tokens": COUNT}
    given |= {"ignore_eos": True, "return_token_ids": True}
    reply = httpx.post(f"{watching.url}/v1/chat/completions", json=given, timeout=120).json()
    params = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True)
    with LLM(str(folder), max_model_len=512, num_kv_blocks=256, dtype="float32") as llm:
        prompt: Any = {
            "prompt": f"user:{SHOWN}{SHOWN}{WORDS};assistant:",
            "multi_modal_data": {"video": [FRAMES[0], list(map(Image.fromarray, FRAMES[1]))]},
        }
        (output,) = llm.generate(prompt, params, use_tqdm=False)
        assert output.prompt_token_ids == reply["prompt_token_ids"]
        assert output.outputs[0].token_ids == reply["choices"][0]["token_ids"]
