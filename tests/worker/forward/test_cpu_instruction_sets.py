"""What test_cpu_bit_identity and test_parity_default show on the best instruction set holds on each
one that the processor has.  Of the default model only a little: plain C++ takes minutes for all."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.model.prepared_model import PreparedModel
from penstock.text.tokenizer import Tokenizer
from tests.thinning import part
from tests.worker.cpu_model import CPUModel
from tests.worker.driver import Job
from tests.worker.forward.test_cpu_bit_identity import WAYS, check, each_alone, make_model
from tests.worker.models.parity import compare
from tests.worker.prompts import TEXTS

FEW_WAYS = [(1, 64, 48, 7, 1), (7, 512, 32, 0, 2)]

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module", params=["default, quantised", "tiny, bfloat16", "tiny, int8"])
def model(
    isa: str,
    request: pytest.FixtureRequest,
    default_model: PreparedModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> CPUModel:
    return make_model(request.param, default_model, tmp_path_factory)


@pytest.fixture(scope="module")
def alone(model: CPUModel) -> list[Job]:
    return each_alone(model)


def test_every_bit_of_logprobs(isa: str, model: CPUModel, alone: list[Job]) -> None:
    for way in FEW_WAYS if model.config.num_layers > 2 else WAYS:
        check(model, alone, *way)


def test_prompts_and_greedy_tokens_are_those_of_transformers(
    isa: str, default_model: PreparedModel, default_tokenizer: Tokenizer, transformers_model: Any
) -> None:
    ours = CPUModel(default_model.config, default_model.weights, "float32")
    prompts = [default_tokenizer.encode(text) for text in TEXTS[: part(4, 1 / 2)]]
    assert compare(ours, transformers_model, prompts, 6) >= len(prompts) * 3
