"""An encoder-decoder model through the library: what is said of a sound is what transformers says,
in any company, and after the worker died under it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from penstock import LLM, AsyncLLM, SamplingParams
from penstock.request.sampling_params import RequestOutputKind
from testing.descendants import descendants
from tests.shared.media.sounds import saved_sound, sound
from tests.system.whisper_model import (
    RATE,
    ROWS,
    TARGETS,
    said_by_transformers,
    tokenizer,
    write_whisper,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COUNT = 12
PROMPT = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"
SETTINGS: dict[str, Any] = {"num_kv_blocks": 256, "dtype": "float32"}
ASKED = [
    (PROMPT, sound(1.0, seed=1)),
    (PROMPT, sound(2.0, seed=2)),
    ("<|startoftranscript|><|de|><|translate|>ab", sound(1.0, seed=1)),
    ("<|startoftranscript|>", sound(0.3, seed=3)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whisper(tmp_path_factory.mktemp("whisper") / "tiny-whisper")


@pytest.fixture(scope="module")
def wanted(folder: Path) -> list[list[int]]:
    return [said_by_transformers(folder, *each, COUNT) for each in ASKED]


def with_sound(prompt: str, samples: np.ndarray) -> dict[str, Any]:
    return {"prompt": prompt, "multi_modal_data": {"audio": (samples, RATE)}}


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), **SETTINGS) as made:
        yield made


GREEDY = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True)
IDS = tokenizer().encode(PROMPT, add_special_tokens=False).ids
DATA = {"audio": (ASKED[0][1], RATE)}


def test_served_transcripts_are_those_of_transformers(llm: LLM, wanted: list[list[int]]) -> None:
    assert wanted[0] != wanted[1], "the model does listen"
    prompts: Any = [with_sound(*each) for each in ASKED]
    outputs = llm.generate(prompts * 2, GREEDY, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == wanted * 2
    assert outputs[0].prompt_token_ids == IDS


@pytest.mark.parametrize(
    "prompt",
    [
        {
            "encoder_prompt": {"prompt": "", "multi_modal_data": DATA},
            "decoder_prompt": PROMPT,
        },
        {
            "encoder_prompt": {"multi_modal_data": {"audio": saved_sound(ASKED[0][1], "FLAC")}},
            "decoder_prompt": {"prompt_token_ids": IDS},
        },
    ],
    ids=["text", "ids"],
)
def test_both_halves_may_be_given_apart(llm: LLM, prompt: Any) -> None:
    (output,) = llm.generate(prompt, GREEDY, use_tqdm=False)
    assert output.prompt_token_ids == IDS
    assert len(output.outputs[0].token_ids) == COUNT


def test_several_answers_to_one_sound(llm: LLM) -> None:
    params = SamplingParams(n=3, max_tokens=COUNT, seed=4, ignore_eos=True, prompt_logprobs=0)
    prompt: Any = with_sound(*ASKED[1])
    (output,) = llm.generate(prompt, params, use_tqdm=False)
    assert len({tuple(each.token_ids) for each in output.outputs}) > 1
    assert output.prompt_logprobs is not None
    assert [entry is None for entry in output.prompt_logprobs] == [True, *[False] * (len(IDS) - 1)]


def test_an_answer_ends_with_the_decoders_positions(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True)
    prompt: Any = with_sound(*ASKED[0])
    (output,) = llm.generate(prompt, params, use_tqdm=False)
    assert len(IDS) + len(output.outputs[0].token_ids) == TARGETS


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (PROMPT, "sound"),
        ({"prompt": "", "multi_modal_data": DATA}, "is empty"),
        ({"prompt": PROMPT, "multi_modal_data": {"audio": [DATA["audio"]] * 2}}, "2 sounds"),
        ({"decoder_prompt": PROMPT}, "encoder_prompt"),
    ],
    ids=["text", "a sound alone", "two sounds", "half a prompt"],
)
def test_other_prompts_are_refused(llm: LLM, prompt: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        llm.generate(prompt, GREEDY, use_tqdm=False)


SAMPLED = SamplingParams(max_tokens=20, seed=7, ignore_eos=True, logprobs=2)


def said(llm: LLM) -> list[Any]:
    prompts: Any = [with_sound(*each) for each in ASKED * 2]
    outputs = llm.generate(prompts, SAMPLED, use_tqdm=False)
    return [(each.outputs[0].token_ids, each.outputs[0].logprobs) for each in outputs]


@pytest.fixture(scope="module")
def usual(llm: LLM) -> list[Any]:
    return said(llm)


@pytest.mark.parametrize(
    "settings",
    [
        {
            "enable_prefix_caching": False,
            "max_num_batched_tokens": 64,
            "max_num_seqs": 3,
            "max_model_len": TARGETS,
        },
        {"num_kv_blocks": 20, "encoder_cache_rows": ROWS},
    ],
    ids=["without the prefix cache, in small chunks", "with hardly any room"],
)
def test_settings_change_no_bit(folder: Path, usual: list[Any], settings: dict[str, Any]) -> None:
    with LLM(str(folder), **SETTINGS | settings) as llm:
        assert said(llm) == usual


def test_a_stream_goes_on_when_the_worker_is_killed(folder: Path) -> None:
    async def streamed(llm: AsyncLLM, kill_at: int) -> list[int]:
        params = SamplingParams(
            max_tokens=40, seed=3, ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )
        ids: list[int] = []
        prompt: Any = with_sound(*ASKED[0])
        async for output in llm.generate(prompt, params):
            ids += output.outputs[0].token_ids
            if len(ids) >= kill_at > 0:
                kill_at = 0
                os.kill(worker(), signal.SIGKILL)
        return ids

    async def twice() -> tuple[list[int], list[int]]:
        async with AsyncLLM(str(folder), **SETTINGS) as llm:
            return await streamed(llm, 0), await streamed(llm, 6)

    undisturbed, disturbed = asyncio.run(twice())
    assert len(undisturbed) == 40
    assert disturbed == undisturbed


def worker() -> int:
    """The pid of the one that was started last: other tests' models are there too."""
    return max(descendants("penstock: worker 0"), key=psutil.Process.create_time).pid
