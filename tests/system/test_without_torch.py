"""A server of a GGUF file on a CPU needs no torch in any process: it answers where there is none
as where there is, and says what it lacks it for where somebody asks for that."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock import LLM
from penstock.config.settings import ModelSettings
from penstock.errors import StartupError
from testing import preloaded
from testing.serving import Server, wait_until

pytestmark = pytest.mark.timeout(600)

MISSING = 'raise ModuleNotFoundError("No module named \'torch\'", name="torch")\n'
PROMPT = "The three primary colours are"
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "max_tokens": 24},
    "seeded, with log-probabilities": {
        "temperature": 1,
        "seed": 5,
        "max_tokens": 16,
        "logprobs": 3,
    },
    "penalties and biases": {
        "temperature": 0,
        "max_tokens": 16,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "logit_bias": {"260": 2.5},
    },
    "several choices": {"temperature": 0.9, "seed": 3, "max_tokens": 12, "n": 3},
    "a grammar": {
        "structured_outputs": {"regex": "[a-c]{4} [0-9]+"},
        "max_tokens": 12,
        "temperature": 0,
    },
    "the prompt's own": {"prompt_logprobs": 2, "max_tokens": 2, "temperature": 0},
    "bad words": {"temperature": 0, "max_tokens": 12, "bad_words": [" red", " blue"]},
    "at least": {"temperature": 0, "max_tokens": 9, "min_tokens": 9, "stop": ["\n"]},
}


@pytest.fixture(scope="module")
def torchless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a torch that can't be imported."""
    folder = tmp_path_factory.mktemp("torchless")
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(MISSING, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def bare(torchless: Path) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch, preloaded.executed():
        patch.setenv("PYTHONPATH", str(torchless))
        running = Server()
    with running:
        yield running


def completed(server: Server, fields: dict[str, Any]) -> list[dict[str, Any]]:
    body = {"model": server.model, "prompt": PROMPT, **fields}
    reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"]


@pytest.mark.parametrize("name", REQUESTS)
def test_answers_are_those_of_a_server_with_torch(bare: Server, server: Server, name: str) -> None:
    found = completed(bare, REQUESTS[name])
    assert found == completed(server, REQUESTS[name])
    assert all(each["finish_reason"] in ("length", "stop") for each in found)


def test_a_killed_worker_is_replaced_without_it(bare: Server) -> None:
    before = completed(bare, REQUESTS["greedy"])
    worker = bare.child("worker 0")
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: bare.processes().get("worker 0", worker) != worker)
    assert completed(bare, REQUESTS["greedy"]) == before


@pytest.mark.parametrize(
    "asked",
    [
        {"attention_backend": "reference"},
        {"model": "all-minilm-l6-v2"},
        {"enable_lora": True},
        {"speculative_config": {"method": "draft_model", "model": ModelSettings().model}},
    ],
    ids=["the reference", "a pooling model", "adapters", "a draft model"],
)
def test_what_computes_with_torch_says_that_it_is_missing(
    asked: dict[str, Any], torchless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(torchless))
    said = r"can't be computed here: it needs torch, .* \(No module named 'torch'\)"
    with preloaded.executed(), pytest.raises(StartupError, match=said):
        LLM(**asked, max_model_len=256, num_kv_blocks=32)
