"""Weights that the caller has as tensors: answers are those of a model that never had others."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import transformers

from penstock import LLM, SamplingParams
from penstock.errors import InvalidRequest, RequestFailed
from penstock.llm import given_weights
from testing.descendants import descendants
from testing.serving import wait_until
from testing.tiny_models import LLAMA_CONFIG, write_gguf, write_hub_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PARAMS = SamplingParams(max_tokens=30, temperature=0.8, ignore_eos=True, seed=5)
PROMPT = {"prompt_token_ids": [n % 200 + 1 for n in range(40)]}


def weights(seed: int) -> Any:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(**LLAMA_CONFIG, initializer_range=0.4)
    return transformers.LlamaForCausalLM(config)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of two models that differ by their weights."""
    made = []
    for seed in range(2):
        folder = tmp_path_factory.mktemp("weights")
        write_hub_folder(folder)
        weights(seed).save_pretrained(folder)
        made.append(folder)
    return made


@pytest.fixture(autouse=True)
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where they lie meanwhile; nothing of them is left there."""
    place = tmp_path / "shm"
    place.mkdir()
    monkeypatch.setattr(given_weights, "SHARED_MEMORY", place)
    yield place
    assert not list(place.iterdir())


def said(llm: LLM) -> str:
    return llm.generate([PROMPT], PARAMS)[0].outputs[0].text


def test_answers_are_those_of_the_tensors(
    folders: list[Path], shared_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given_weights, "SHARD_BYTES", 20_000)  # Several files.
    expected = []
    for folder in folders:
        with LLM(str(folder)) as llm:
            expected.append(said(llm))
    assert expected[0] != expected[1]
    states = [weights(seed).state_dict() for seed in range(2)]
    others = descendants("penstock: worker 0")  # Of systems that tests before this one share.
    with LLM(str(folders[0])) as llm:
        llm.update_weights(tensors=states[1])
        assert said(llm) == expected[1]
        assert len(list(shared_memory.iterdir())) == 1
        llm.update_weights(tensors=((name, each.numpy()) for name, each in states[0].items()))
        assert said(llm) == expected[0]
        assert len(list(shared_memory.iterdir())) == 1, "the former ones have gone"
        (worker,) = (each for each in descendants("penstock: worker 0") if each not in others)
        os.kill(worker.pid, signal.SIGKILL)
        wait_until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)
        assert said(llm) == expected[0]
        part = {name: each for name, each in states[1].items() if "norm" not in name}
        with pytest.raises((InvalidRequest, RequestFailed), match="norm"):
            llm.update_weights(tensors=part)
        assert said(llm) == expected[0]
        llm.sleep(level=2)
        torn = {name: each[:1] if "mlp" in name else each for name, each in states[1].items()}
        try:
            llm.update_weights(tensors=torn)
        except (InvalidRequest, RequestFailed):
            pass  # It may be seen at once, or when the model wakes.
        llm.wake_up()
        assert said(llm) == expected[0]
        llm.update_weights(folders[1])
        assert said(llm) == expected[1]
        assert not list(shared_memory.iterdir())


def test_what_can_not_be_taken_is_said(folders: list[Path], tmp_path: Path) -> None:
    state = weights(1).state_dict()
    with LLM(str(folders[0])) as llm:
        before = said(llm)
        for tensors, says in (
            ({}, "tensors is empty"),
            ({"model.norm.weight": [1.0]}, "list; allowed: names with torch's tensors or NumPy's"),
            ({**state, "model.norm.weight": state["model.norm.weight"].numpy()}, "one of the two"),
        ):
            with pytest.raises(InvalidRequest, match=says):
                llm.update_weights(tensors=tensors)
        for wrong in ({}, {"model": folders[0], "tensors": state}):
            with pytest.raises(InvalidRequest, match="a model or as tensors"):
                llm.update_weights(**wrong)
        assert said(llm) == before
    says = "in GGUF; tensors can be given to a model whose"
    with (
        LLM(str(write_gguf(tmp_path / "m.gguf"))) as llm,
        pytest.raises(InvalidRequest, match=says),
    ):
        llm.update_weights(tensors=state)
