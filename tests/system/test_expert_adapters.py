"""Adapters of a mixture's experts through the whole system: what PEFT computes, beside the model
and other adapters, whoever dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from testing.serving import Server, wait_until
from testing.tiny_models import byte_level_tokenizer, write_hub_folder
from tests.system.test_adapters import admin, choice, complete, listed, streamed, wait_until_back
from tests.worker.adapters.test_experts import FUSED, peft_model
from tests.worker.models.family_cases import CASES
from tests.worker.models.test_parity_families import make_theirs

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

PROMPT = "The history of the city begins"
TOKENS = 16


@dataclass
class Made:
    """A model, adapters of its experts, and what transformers and PEFT say behind PROMPT."""

    model: Path
    adapters: Path
    said: dict[str, str]
    """What was said, by the adapter's name; empty for the model alone."""


def greedy(theirs: Any) -> str:
    ids = byte_level_tokenizer().encode(PROMPT).ids
    with torch.inference_mode():
        [found] = theirs.generate(
            input_ids=torch.tensor([ids]),
            max_new_tokens=TOKENS,
            do_sample=False,
            eos_token_id=None,
        )
    return byte_level_tokenizer().decode(found[len(ids) :].tolist())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("experts")
    family, settings = CASES["qwen3-moe"]
    settings = settings | {"vocab_size": 700, "eos_token_id": 2}
    theirs = make_theirs(family, settings)
    write_hub_folder(folder / "model", config={})
    theirs.save_pretrained(folder / "model")
    said = {"": greedy(theirs)}
    usual = {"r": 3, "target_parameters": [f"experts.{each}" for each in FUSED]}
    for name, targets in (("experts", []), ("queries", ["q_proj"])):
        wrapped = peft_model(make_theirs(family, settings), target_modules=targets, **usual)
        wrapped.save_pretrained(folder / name)
        said[name] = greedy(wrapped)
    assert len(set(said.values())) == 3
    return Made(folder / "model", folder, said)


@pytest.fixture
def running(made: Made, start_server: Callable[..., Server], tmp_path: Path) -> Server:
    flags = ["--enable-lora", "--lora-experts", "--max-lora-rank", "8", "--max-loras", "2"]
    flags += ["--max-model-len", "200", "--num-kv-blocks", "128", "--dtype", "float32"]
    flags += ["--lora-allowed-folder", str(made.adapters), "--cache-dir", str(tmp_path / "cache")]
    return start_server(
        str(made.model), *flags, "--lora-modules", f"experts={made.adapters / 'experts'}"
    )


def says(server: Server, name: str) -> str:
    answer = complete(server, name or server.model, temperature=0.0, max_tokens=TOKENS)
    return choice(answer)["text"]


def test_each_says_what_peft_says_and_no_bit_depends_on_the_others(
    made: Made, running: Server
) -> None:
    loaded = admin(running, "load", lora_name="queries", lora_path="queries")
    assert loaded.status_code == 200, loaded.text
    assert {name: says(running, name) for name in made.said} == made.said
    names = [running.model, "experts", "queries"]
    alone = {name: choice(complete(running, name)) for name in names}
    with ThreadPoolExecutor(9) as pool:
        crowd = list(pool.map(lambda name: choice(complete(running, name)), names * 3))
    assert crowd == [alone[name] for name in names] * 3
    assert admin(running, "unload", lora_name="queries").status_code == 200
    assert complete(running, "queries").status_code == 404
    assert listed(running) == [running.model, "experts"]
    assert says(running, "experts") == made.said["experts"]


def test_a_stream_goes_on_when_the_worker_is_killed_under_it(made: Made, running: Server) -> None:
    undisturbed = streamed(running, "experts", lambda count: None)
    victim = running.child("worker 0")

    def kill(count: int) -> None:
        if count == 3:
            os.kill(victim, signal.SIGKILL)

    assert streamed(running, "experts", kill) == undisturbed
    wait_until_back(running, "worker 0", victim)
    wait_until(running.ready)
    assert says(running, "experts") == made.said["experts"]


def test_without_the_setting_such_an_adapter_is_a_bad_request(
    made: Made, start_server: Callable[..., Server], tmp_path: Path
) -> None:
    flags = ["--enable-lora", "--max-lora-rank", "8", "--cache-dir", str(tmp_path / "cache")]
    flags += ["--lora-allowed-folder", str(made.adapters), "--max-model-len", "200"]
    server = start_server(str(made.model), *flags, "--num-kv-blocks", "64")
    assert admin(server, "load", lora_name="experts", lora_path="experts").status_code == 200
    answer = complete(server, "experts")
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_adapter", "model")
    assert "--lora-experts" in error["message"]
    assert says(server, "") != ""
