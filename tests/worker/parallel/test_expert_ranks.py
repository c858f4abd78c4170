"""Where an expert is matters to no bit: ranks that hold whole experts give one worker's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from penstock.errors import StartupError
from penstock.model.expert_places import ExpertPlace, ExpertPlaces
from penstock_worker.forward.cpu import backend as cpu
from penstock_worker.parallel.errors import GroupLost
from tests.worker.cpu_model import CPUModel
from tests.worker.models.family_cases import read
from tests.worker.models.test_family_bits import EACH, TOKENS, alone, in_chunks_and_company
from tests.worker.models.test_parity_on_cpu import REFUSED
from tests.worker.parallel.forward_over_ranks import ForwardOverRanks
from tests.worker.parallel.test_cpu_ranks import CUT, NO_FILES, opened
from tests.worker.parallel.together import Formed

pytestmark = pytest.mark.timeout(120)
MIXTURES = [
    case
    for case in CUT
    if case not in REFUSED and any(layer.feed_forward.experts for layer in read(case).layers)
]
ON_FOUR = ("qwen3-moe", "gpt-oss", "deepseek-v3", "glm45-groups", "nemotron-h-latents")


@pytest.fixture(scope="module", autouse=True)
def without_files() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "open_weights", opened)
        yield


@pytest.fixture(scope="module")
def two() -> Iterator[Formed]:
    with Formed(2) as formed:
        yield formed


@pytest.fixture(scope="module")
def four() -> Iterator[Formed]:
    with Formed(4) as formed:
        yield formed


def model(case: str, dtype: str = "float32", **options: Any) -> CPUModel:
    """Of a dense layer each of four ranks has a part; an expert is as small as it is."""
    config = read(case)
    dense = max(config.intermediate_size, 128)
    layers = []
    for layer in config.layers:
        experts = layer.feed_forward.experts
        if experts is not None and experts.shared_inner:
            wide = msgspec.structs.replace(experts, shared_inner=128)
            feed_forward = msgspec.structs.replace(layer.feed_forward, experts=wide)
            layer = msgspec.structs.replace(layer, feed_forward=feed_forward)
        layers.append(layer)
    config = msgspec.structs.replace(config, intermediate_size=dense, layers=tuple(layers))
    return CPUModel(config, NO_FILES, dtype, positions=1024, expert_parallel=True, **options)


def one_worker(of: CPUModel) -> torch.Tensor:
    lone = replace(of, expert_parallel=False)
    with torch.inference_mode():
        return alone(lone.forward(block_size=16, num_blocks=EACH * of.groups, threads=1), of.groups)


@pytest.mark.parametrize("case", MIXTURES)
def test_two_ranks_have_one_workers_bits(case: str, two: Formed) -> None:
    mine = model(case)
    true = one_worker(mine)
    assert bool(true.isfinite().all())
    assert true.std() > 0
    assert torch.equal(alone(ForwardOverRanks(two, mine), mine.groups), true)
    assert torch.equal(in_chunks_and_company(ForwardOverRanks(two, mine), mine.groups), true)
