"""A model with recurrent layers, served by `penstock serve`."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from testing.serving import Server, wait_until
from testing.tiny_models import byte_level_tokenizer, write_hub_folder
from tests.worker.models.recurrent_cases import RECURRENT_CASES
from tests.worker.models.test_parity_families import make_theirs

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

PROMPT = "Once upon a time there was a lighthouse"
FLAGS = ["--max-num-batched-tokens", "24", "--max-num-seqs", "4", "--max-model-len", "96"]


@pytest.fixture(
    scope="module",
    params=[
        "qwen3-next",
        pytest.param("falcon-h1", marks=pytest.mark.long),
        pytest.param("kimi-linear", marks=pytest.mark.long),
        pytest.param("mamba2", marks=pytest.mark.long),
    ],
)
def saved(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder, and the model as transformers has it: with layers of either kind, with layers
    that have both a state and keys and values, or with states alone."""
    folder = tmp_path_factory.mktemp("recurrent")
    family, settings = RECURRENT_CASES[request.param]
    theirs = make_theirs(family, settings | {"vocab_size": 700, "eos_token_id": 2})
    write_hub_folder(folder, config={})
    theirs.save_pretrained(folder)
    return folder, theirs


@pytest.fixture
def running(saved: tuple[Path, Any], start_server: Callable[..., Server]) -> Server:
    """Few blocks and checkpoints near each other: prompts are cut, found and preempted."""
    return start_server(
        str(saved[0]), *FLAGS, "--num-kv-blocks", "24", "--state-checkpoint-tokens", "16"
    )


def ask(server: Server, number: int = 0, **options: Any) -> Any:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0)
    wanted = {"temperature": 0.0, "max_tokens": 40, "logprobs": 2} | options
    body = {"ignore_eos": True} | wanted.pop("extra_body", {})
    prompt = f"{PROMPT} {number}" if number else PROMPT
    return client.completions.create(model=server.model, prompt=prompt, extra_body=body, **wanted)


def test_served_as_any_other(saved: tuple[Path, Any], running: Server) -> None:
    theirs = saved[1]
    alone = ask(running)
    ids = byte_level_tokenizer().encode(PROMPT).ids
    with torch.inference_mode():
        [true] = theirs.generate(
            torch.tensor([ids]), max_new_tokens=40, do_sample=False, eos_token_id=None
        )
    assert alone.choices[0].text == byte_level_tokenizer().decode(true[len(ids) :].tolist())
    with ThreadPoolExecutor(8) as pool:
        crowd = list(pool.map(lambda number: ask(running, number), (0, 1, 2, 0, 3)))
    for answer in (crowd[0], crowd[3]):
        assert answer.choices[0].logprobs == alone.choices[0].logprobs
    several = [ask(running, n=3, temperature=1.0, seed=4) for _ in range(2)]
    assert several[0].choices == several[1].choices
    echoed = [ask(running, echo=True, max_tokens=1) for _ in range(2)]
    assert echoed[0].choices[0].logprobs == echoed[1].choices[0].logprobs
    beams = {"use_beam_search": True}
    found = [ask(running, n=2, max_tokens=6, logprobs=None, extra_body=beams) for _ in range(2)]
    assert found[0].choices == found[1].choices


def test_grammars_whose_masks_are_late(saved: tuple[Path, Any], start_server: Any) -> None:
    """Each is: its tokens are asked for again, and taken up once."""
    text = {"type": "string", "minLength": 3, "maxLength": 12}
    schema = {"type": "object", "properties": {"a": text}, "required": ["a"]}
    schema |= {"additionalProperties": False}
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answers = []
    for budget in ("1000", "0.001"):
        server = start_server(str(saved[0]), *FLAGS, "--grammar-mask-budget-ms", budget)
        answers.append(
            ask(server, max_tokens=60, extra_body={"response_format": shape, "ignore_eos": False})
        )
        server.stop()
    assert set(json.loads(answers[0].choices[0].text)) == {"a"}
    assert answers[0].choices == answers[1].choices


def test_a_stream_goes_on_when_the_worker_is_killed_under_it(running: Server) -> None:
    undisturbed = ask(running, temperature=0.8, seed=5, max_tokens=48).choices[0].text
    first, text = running.child("worker 0"), ""
    for count, chunk in enumerate(
        ask(running, temperature=0.8, seed=5, max_tokens=48, stream=True)
    ):
        text += chunk.choices[0].text if chunk.choices else ""
        if count == 8:
            os.kill(first, signal.SIGKILL)
    assert text == undisturbed
    wait_until(lambda: running.children().get("penstock: worker 0") not in (None, first))
