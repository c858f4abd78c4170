"""The default model against transformers' own reading of the same GGUF file, in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from penstock.model.prepared_model import PreparedModel
from penstock.text.tokenizer import Tokenizer
from penstock_worker.models.decoder import DecoderModel
from tests.thinning import every
from tests.worker.cpu_model import CPUModel
from tests.worker.driver import Driver, Job, make_runner
from tests.worker.models.parity import compare
from tests.worker.prompts import LONG, TEXTS

WANTED = 64


@pytest.fixture(scope="module")
def prompts(default_tokenizer: Tokenizer) -> list[list[int]]:
    found = [default_tokenizer.encode(text) for text in TEXTS]
    for _, text, length in LONG:
        found.append(default_tokenizer.encode(text * (length // 20))[:length])
    return found


@pytest.fixture(scope="module")
def short(prompts: list[list[int]]) -> list[list[int]]:
    found = [prompt for prompt in prompts if len(prompt) < 100]
    assert len(found) >= 20
    return found


@pytest.mark.timeout(600)
def test_short_prompts_and_16_greedy_tokens(
    default_float32: DecoderModel,
    default_model: PreparedModel,
    transformers_model: Any,
    short: list[list[int]],
) -> None:
    """What the two long ones do, with less of everything."""
    kernels = CPUModel(default_model.config, default_model.weights, "float32")
    some = short[:: 1 if every else 8]
    for model in (default_float32, kernels):
        assert compare(model, transformers_model, some, 16) >= len(some) * 8


@pytest.mark.long
@pytest.mark.timeout(900)
def test_prompts_and_64_greedy_tokens(
    default_float32: DecoderModel, transformers_model: Any, prompts: list[list[int]]
) -> None:
    lengths = sorted(map(len, prompts))
    assert len(prompts) >= 24
    assert lengths[0] == 1
    assert lengths[-1] == 1500
    compared = compare(default_float32, transformers_model, prompts, WANTED)
    # Most answers have no near tie in 64 steps: were it otherwise, little would be shown.
    assert compared >= len(prompts) * WANTED // 2


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_same_on_cpu_kernels(
    default_model: PreparedModel, transformers_model: Any, prompts: list[list[int]]
) -> None:
    """An explicit float32 is float32 throughout, whatever the file holds: the same bounds."""
    ours = CPUModel(default_model.config, default_model.weights, "float32")
    shorter = [*prompts[:-1], prompts[-1][:1030]]
    compared = compare(ours, transformers_model, shorter, 24)
    assert compared >= len(prompts) * 12


@pytest.mark.long
@pytest.mark.timeout(240)
def test_generate_gives_our_tokens(
    default_float32: DecoderModel, transformers_model: Any, prompts: list[list[int]]
) -> None:
    """Once the literal way: transformers' generate with its KV cache."""
    ours = Job(prompts[2], 24)
    Driver(make_runner(default_float32)).run([ours])
    theirs = transformers_model.generate(
        torch.tensor([prompts[2]]), max_new_tokens=24, do_sample=False, eos_token_id=-1
    )
    assert theirs[0, len(prompts[2]) :].tolist() == ours.tokens
