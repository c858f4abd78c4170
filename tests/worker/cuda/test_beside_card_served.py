"""Experts in the host's memory beside all else that a server does: each request is answered as when
all experts are on the card and it has the server for itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from penstock.adapters import read_adapter
from penstock.protocol.common import AdapterFile, Grammar
from penstock.protocol.from_worker import AdapterFailed
from penstock.protocol.worker_resources import LoadAdapter
from penstock_kernels.cpu import library
from penstock_worker.adapters.slot_adapters import SlotAdapters
from penstock_worker.layers import level_experts
from testing.in_process import System
from testing.model_configs import varied
from tests.adapter_folders import write_peft
from tests.system.eager_drafts import eager
from tests.system.in_process_media import Asked, Deaths, MediaSystem
from tests.worker.adapters import test_experts
from tests.worker.adapters.rig import factors_of
from tests.worker.cpu_model import CPUModel
from tests.worker.cuda.beside_card import (
    CASES,
    COPIED_FROM,
    GREEDY,
    NUMERICS,
    ON_CARD,
    REQUESTS,
    SAMPLED,
    WAY,
    Said,
    byte_tokens,
    closed,
    copied_some,
    mixture,
    one_by_one,
    prompt,
    said,
)
from tests.worker.cuda.small_models import GROUPED
from tests.worker.speculation.draft_folders import write_folder
from tests.worker.speculation.head_folders import prepared_folder
from tests.worker.speculation.slow_heads import VOCAB, Eagle3

__all__ = ["eager"]
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="it is sized for the interpreter"),
]


@pytest.fixture(autouse=True)
def copied_early(monkeypatch: pytest.MonkeyPatch, unwarmed: None) -> Iterator[None]:
    """Loading chooses the instruction set for its process."""
    before = library.instruction_set()
    monkeypatch.setattr(level_experts, "rows_worth_a_copy", lambda *_: COPIED_FROM)
    yield
    library.use(before)


class Mixtures:
    """Models by case and number of layers, each written once, with what they say undisturbed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._models: dict[Path, CPUModel] = {}
        self._said: dict[Path, Said] = {}

    def folder(self, case: str, layers: int = 2) -> Path:
        found = self._folder / f"{case} {layers}"
        if found not in self._models:
            self._models[found] = mixture(found, case, layers=layers)
        return found

    def model(self, case: str) -> CPUModel:
        return self._models[self.folder(case)]

    def undisturbed(self, case: str, layers: int = 2) -> Said:
        """With all experts on the card."""
        folder = self.folder(case, layers)
        if folder not in self._said:
            self._said[folder] = one_by_one(folder, ON_CARD)
        return self._said[folder]


@pytest.fixture(scope="module")
def mixtures(tmp_path_factory: pytest.TempPathFactory) -> Mixtures:
    return Mixtures(tmp_path_factory.mktemp("mixtures"))


def crowd(system: System, first: int = 10) -> None:
    """All at once, with another one of two answers."""
    system.submit(first, prompt(15, 5), 4, SAMPLED, 2)
    for number, request in REQUESTS.items():
        system.submit(number, *request)


def of_requests(found: Said) -> Said:
    return {key: each for key, each in found.items() if key[0] in REQUESTS}


@pytest.mark.parametrize(("case", "words"), [("qwen3-moe-all", "all"), ("gpt-oss", "1")])
def test_a_crowd_in_a_small_pool(mixtures: Mixtures, case: str, words: str) -> None:
    """For a second time, prefixes are there or come back from the host's tier, which a company of
    other rows has computed."""
    blocks = 20 if case == "gpt-oss" else 10
    way = replace(WAY, cpu_experts=words, num_blocks=blocks, preemption="swap", host_kib=256)
    system = System(mixtures.folder(case), NUMERICS, way)
    for first in (10, 20):
        crowd(system, first)
        system.run()
        copied_some(system.loaded)
        assert of_requests(said(system.heard)) == mixtures.undisturbed(case)
    assert system.core.state.scheduling.cache is not None
    assert system.core.state.scheduling.cache.num_swapped_in > 0
    assert system.reused >= 12
    closed(system)


@pytest.mark.parametrize(
    ("case", "words", "deaths"),
    [
        ("qwen3-moe-all", "all", Deaths(worker=2)),
        ("gpt-oss", "1", Deaths(worker=2)),
        ("gpt-oss", "all", Deaths(core=2)),
    ],
)
def test_a_process_dies_in_the_middle_of_a_prompt(
    mixtures: Mixtures, case: str, words: str, deaths: Deaths
) -> None:
    """Whose experts have been copied for the step that is lost."""
    way = replace(WAY, cpu_experts=words, budget=12)
    system = MediaSystem(mixtures.folder(case), NUMERICS, way, deaths)
    asked = {
        number: Asked(tokens, wanted, sampling)
        for number, (tokens, wanted, sampling, _) in REQUESTS.items()
    }
    system.run(asked)
    assert system.plans > 2
    copied_some(system.system.loaded)
    found = {(number, 0): each for number, each in system.heard.items()}
    assert said(found) == mixtures.undisturbed(case)
    assert system.system.loaded is not None
    system.system.loaded.runner.close()


def head_of(folder: Path) -> dict[str, Any]:
    """A head that drafts for any of these mixtures, as right as random weights are."""
    shapes: Any = None
    Eagle3(shapes, own=100).write(folder / "head")
    return {"method": "eagle3", "model": str(prepared_folder(folder / "head", folder / "made"))}


def dense(folder: Path) -> dict[str, Any]:
    """A small model that drafts, without experts."""
    own = byte_tokens().to_str().encode()
    made = write_folder(
        folder / "dense", varied(GROUPED, vocab_size=VOCAB), contents="", tokenizer=own
    )
    return {"method": "draft_model", "model": str(made)}


def suffix(_: Path) -> dict[str, Any]:
    """What is looked up in what was said, and in what an answer is expected to be."""
    return {"method": "suffix"}


def ngram(_: Path) -> dict[str, Any]:
    """The same, of the request alone."""
    return {"method": "ngram"}


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("case", "drafts", "words", "layers"),
    [
        ("qwen3-moe-all", suffix, "all", 2),
        ("gpt-oss", ngram, "1", 2),
        ("qwen3-moe-all", head_of, "all", 4),
        ("gpt-oss", dense, "all", 2),
    ],
)
def test_drafts(
    mixtures: Mixtures,
    case: str,
    drafts: Callable[[Path], dict[str, Any]],
    words: str,
    layers: int,
    tmp_path: Path,
) -> None:
    """Rows of drafts are rows like others: right ones are kept, and wrong ones change nothing."""
    said_by = json.dumps(drafts(tmp_path) | {"num_speculative_tokens": 2})
    way = replace(WAY, cpu_experts=words, speculation=said_by, steps=1)
    asked, found = (prompt(14, 9), 10, SAMPLED), []
    expected: list[int] = []
    for each in (ON_CARD, way):
        system = System(mixtures.folder(case, layers), NUMERICS, each)
        system.submit(9, *asked, prediction=expected)
        system.run()
        tokens = system.heard[9, 0].tokens
        expected = [*tokens[:5], tokens[5] - 1, *tokens[6:]]
        if each is way:
            copied_some(system.loaded)
        found.append(closed(system))
    assert found[1] == found[0]
    assert system.drafted > 0
    if drafts in (suffix, ngram):
        assert 0 < system.kept < system.drafted


@pytest.mark.parametrize("case", CASES)
def test_grammars(mixtures: Mixtures, case: str) -> None:
    """Beside requests without."""
    words, bound = byte_tokens(), Grammar("regex", "(ab|cd){2}[0-9]+")
    found = []
    for experts in ("0", "all"):
        system = System(mixtures.folder(case), NUMERICS, replace(WAY, cpu_experts=experts))
        system.submit(9, prompt(22, 9), 6, SAMPLED, grammar=bound)
        if experts != "0":
            for number, request in REQUESTS.items():
                system.submit(number, *request)
        system.run()
        text = words.decode(system.heard[9, 0].tokens)
        assert text[:2] in ("ab", "cd")
        assert text[4:].isdecimal()
        if experts != "0":
            copied_some(system.loaded)
            assert of_requests(said(system.heard)) == mixtures.undisturbed(case)
        found.append(closed(system)[9, 0])
    assert found[1] == found[0]


@pytest.mark.parametrize("case", CASES)
def test_adapters_of_attention(mixtures: Mixtures, case: str, tmp_path: Path) -> None:
    """One for some requests, none for others, in the same steps."""
    config = mixtures.model(case).config
    path = write_peft(tmp_path, factors_of(config, 4, 3, ("q_proj", "o_proj")), alpha=12.0)
    adapter = AdapterFile(read_adapter(path)[0], str(path))
    found = []
    for words in ("0", "all"):
        way = replace(WAY, cpu_experts=words, max_loras=1)
        system = System(mixtures.folder(case), NUMERICS, way)
        system.submit(9, REQUESTS[1][0], 5, GREEDY, adapter=adapter)
        if words != "0":
            for number, request in REQUESTS.items():
                system.submit(number, *request)
        system.run()
        if words != "0":
            copied_some(system.loaded)
            assert of_requests(said(system.heard)) == mixtures.undisturbed(case)
        found.append(closed(system)[9, 0])
    assert found[1] == found[0]
    assert found[0] != mixtures.undisturbed(case)[1, 0]


def test_adapters_of_experts_are_refused(mixtures: Mixtures, tmp_path: Path) -> None:
    """By the module's name; the server goes on."""
    config = mixtures.model("qwen3-moe-all").config
    factors = test_experts.factors_of(config, 4, 3, ("experts.2.up_proj",))
    path = write_peft(tmp_path, factors)
    way = replace(WAY, cpu_experts="all", max_loras=1)
    system = System(mixtures.folder("qwen3-moe-all"), NUMERICS, way)
    system.submit(1, *REQUESTS[1])
    system.run()
    assert system.loaded is not None
    answers = SimpleQueue[Any]()
    loading = LoadAdapter(read_adapter(path)[0], str(path))
    system.loaded.runner.feature(SlotAdapters).load(loading, answers.put)
    answer = answers.get(timeout=60)
    assert isinstance(answer, AdapterFailed)
    assert "layers.0.mlp.experts.2.up_proj, part of a mixture of experts" in answer.reason
    system.submit(2, *REQUESTS[2])
    system.run()
    assert closed(system) == mixtures.undisturbed("qwen3-moe-all")
