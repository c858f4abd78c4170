"""Steps of which only the most likely tokens are wanted give no logits, and the same tokens."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from torch import Tensor

from penstock.model.prepared_model import PreparedModel
from penstock.model.speculation import SpeculativeConfig
from penstock.protocol.common import LogitsAdjustments, TokenSampling
from penstock_worker.forward.cpu.forward import CPUForward
from penstock_worker.forward.interface import Batch
from penstock_worker.loading.load import load
from penstock_worker.loading.loaded import Loaded
from tests.worker.cpu_model import CPUModel
from tests.worker.driver import Driver, Job

pytestmark = pytest.mark.timeout(300)

LIKELIEST = TokenSampling(0, temperature=0.0)
MORE = {
    "log-probabilities": TokenSampling(0, temperature=0.0, logprobs=0),
    "a seed": TokenSampling(3, temperature=1.0),
    "a bias": TokenSampling(0, temperature=0.0, adjustments=LogitsAdjustments(bias={5: 1.0})),
    "tokens held back": TokenSampling(0, temperature=0.0, min_tokens=3, held_back=(2,)),
}


@pytest.fixture(scope="module")
def made() -> Iterator[list[str]]:
    """What the forward pass is asked for, one after another."""
    made: list[str] = []

    def watch(patch: pytest.MonkeyPatch, name: str) -> None:
        inner = getattr(CPUForward, name)

        def call(forward: CPUForward, batch: Batch, rows: np.ndarray) -> Tensor:
            made.append(name)
            found: Tensor = inner(forward, batch, rows)
            return found

        patch.setattr(CPUForward, name, call)

    with pytest.MonkeyPatch.context() as patch:
        watch(patch, "logits")
        watch(patch, "likeliest")
        yield made


@pytest.fixture(scope="module")
def loaded(default_folder: str, default_model: PreparedModel, made: object) -> Iterator[Loaded]:
    """Made after `made`, because it keeps the methods that it will call."""
    model = CPUModel(default_model.decoder, default_model.weights, "auto", backend="auto")
    setup = model.setup(num_blocks=128, threads=2)
    drafting = SpeculativeConfig(method="ngram", num_speculative_tokens=4)
    ready = load(
        msgspec.structs.replace(setup, model_dir=str(default_folder), speculation=drafting)
    )
    yield ready
    ready.runner.close()


@pytest.fixture
def calls(made: list[str]) -> list[str]:
    """The calls that are made in one test."""
    made.clear()
    return made


def jobs(*samplings: TokenSampling) -> list[Job]:
    """Jobs of prompts that repeat themselves, so that drafts are found."""
    random = np.random.default_rng(5)
    return [
        Job(np.tile(random.integers(0, 49_000, 7 + at), 4).tolist(), 12, sampling)
        for at, sampling in enumerate(samplings)
    ]


def run(loaded: Loaded, some: list[Job], **options: int) -> list[list[int]]:
    loaded.runner.reset()
    done = Driver(loaded.runner, num_blocks=128, **options).run(some)
    assert all(job.error is None for job in done)
    return [job.tokens for job in done]


@pytest.mark.parametrize("draft", [0, 4])
def test_the_same_tokens_as_from_logits(loaded: Loaded, calls: list[str], draft: int) -> None:
    asked = jobs(*[LIKELIEST] * 5)
    tokens = run(loaded, asked, draft=draft, budget=40)
    assert set(calls) == {"likeliest"}
    assert bool(sum(job.kept for job in asked)) == bool(draft)
    calls.clear()
    assert run(loaded, jobs(*[MORE["log-probabilities"]] * 5), budget=40) == tokens
    assert set(calls) == {"logits"}


@pytest.mark.parametrize("more", MORE)
def test_one_that_asks_for_more_has_logits_for_all(
    loaded: Loaded, calls: list[str], more: str
) -> None:
    alone = run(loaded, jobs(LIKELIEST))
    calls.clear()
    assert run(loaded, jobs(LIKELIEST, MORE[more]))[:1] == alone
    assert "logits" in calls


def test_a_chunk_that_ends_within_its_prompt_has_no_rows(loaded: Loaded, calls: list[str]) -> None:
    whole = run(loaded, jobs(LIKELIEST))
    assert run(loaded, jobs(LIKELIEST), budget=5) == whole
    assert set(calls) == {"likeliest"}
