"""Adapters in every family: the same bits in any company, in any chunks and over ranks; and on the
CPU kernels what the reference computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from penstock.model.config import ModelConfig
from penstock_worker.adapters.adaptable import adaptable_modules, expert_modules
from penstock_worker.adapters.fitting import FittedModule
from penstock_worker.adapters.interface import BatchAdapters, HeldAdapter
from penstock_worker.batch.logits import in_torch
from penstock_worker.forward import reference
from penstock_worker.forward.backends import choose
from penstock_worker.forward.cpu import backend as cpu
from penstock_worker.forward.interface import Batch, Forward
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.weights.stored import StoredTensor
from tests.worker.cpu_model import CPUModel
from tests.worker.models.family_cases import CASES, read
from tests.worker.models.test_family_bits import (
    EACH,
    NO_FILES,
    POSITIONS,
    alone,
    in_chunks_and_company,
)
from tests.worker.models.test_parity_on_cpu import REFUSED
from tests.worker.parallel.forward_over_ranks import ForwardOverRanks
from tests.worker.parallel.together import Formed
from tests.worker.random_weights import RandomWeights

pytestmark = pytest.mark.timeout(120)


def all_modules(config: ModelConfig) -> dict[str, tuple[int, int]]:
    return adaptable_modules(config) | expert_modules(config)


ADAPTED = [case for case in CASES if case not in REFUSED and all_modules(read(case))]


@pytest.fixture(scope="module", autouse=True)
def without_files() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for backend in (cpu, reference):
            patch.setattr(backend, "open_weights", opened)
        yield


def opened(
    _files: Any, _config: Any, dtype: torch.dtype = torch.float32, **_also: Any
) -> RandomWeights:
    return RandomWeights(dtype)


def stored(name: str, values: np.ndarray) -> StoredTensor:
    data = np.ascontiguousarray(values, dtype=np.float32).reshape(-1).view(np.uint8)
    return StoredTensor(name, values.shape, "F32", data)


def modules_of(model: CPUModel, rank: int) -> dict[str, FittedModule]:
    random = np.random.default_rng(rank)
    return {
        name: FittedModule(
            stored(f"{name} A", random.standard_normal((rank, inputs)) * inputs**-0.5),
            stored(f"{name} B", random.standard_normal((outputs, rank)) * 0.3),
            0.5,
        )
        for name, (outputs, inputs) in all_modules(model.config).items()
    }


class Adapted:
    """Gives the last sequence of each batch one adapter, and others another."""

    def __init__(self, forward: Forward, held: tuple[HeldAdapter, HeldAdapter]) -> None:
        self.forward = forward
        self.held = held

    def logits(self, batch: Batch, rows: np.ndarray) -> torch.Tensor:
        count = len(batch.counts)
        which = np.array([1] * (count - 1) + [0])
        adapters = BatchAdapters(self.held[:count], which)
        return in_torch(self.forward.logits(replace(batch, adapters=adapters), rows))


def adapted(model: CPUModel, ranks: Ranks = ALONE, threads: int = 1) -> Adapted:
    blocks = EACH * model.groups
    with torch.inference_mode():
        setup = model.setup(num_blocks=blocks, threads=threads)
        recipe = choose(model.prepared(), setup, threads, ranks)
        forward, holds = recipe.build()(blocks), recipe.adapters
        assert holds is not None
        return Adapted(
            forward, (holds.hold(modules_of(model, 9)), holds.hold(modules_of(model, 33)))
        )


def model(case: str, dtype: str, backend: str = "cpu") -> CPUModel:
    return CPUModel(
        read(case),
        NO_FILES,
        dtype,
        backend=backend,
        positions=POSITIONS,
        max_loras=2,
        max_lora_rank=40,
        lora_experts=True,
    )


@pytest.mark.parametrize("case", ADAPTED)
def test_bits_and_the_reference(case: str) -> None:
    mine = model(case, "float32")
    with torch.inference_mode():
        one = alone(adapted(mine), mine.groups)
        assert torch.equal(in_chunks_and_company(adapted(mine, threads=2), mine.groups), one)
        theirs = alone(adapted(model(case, "float32", "reference")), mine.groups)
        base = alone(adapted(mine).forward, mine.groups)
    assert torch.allclose(one, theirs, rtol=1e-3, atol=1e-3)
    assert (one - base).abs().max() > 0.1


@pytest.mark.parametrize(
    ("case", "tensor", "pipeline"),
    [
        *(("phi3", 2, 1), ("cohere2", 2, 1), ("olmo3", 3, 1), ("qwen3-5-1", 2, 2)),
        *(("gemma3", 1, 3), ("qwen2-moe", 2, 1), ("gpt-oss", 2, 1), ("mixtral", 2, 3)),
        ("llama4", 1, 2),
    ],
)
def test_ranks_have_one_workers_bits(case: str, tensor: int, pipeline: int) -> None:
    mine = model(case, "bfloat16")
    with Formed(tensor, pipeline) as formed:
        over = ForwardOverRanks(formed, mine, threads=2)
        made = formed.each(lambda ranks: adapted(mine, ranks, threads=2))
        over.by_rank = dict(zip(formed.ranks, made, strict=True))
        ours = in_chunks_and_company(over, mine.groups)
    with torch.inference_mode():
        assert torch.equal(ours, alone(adapted(mine), mine.groups))


@pytest.mark.parametrize("case", ["gpt-oss", "mixtral"])
def test_ranks_that_hold_whole_experts_have_one_workers_bits(case: str) -> None:
    mine = model(case, "bfloat16")
    with Formed(2) as formed:
        dealt = replace(mine, expert_parallel=True)
        over = ForwardOverRanks(formed, dealt)
        made = formed.each(lambda ranks: adapted(dealt, ranks))
        over.by_rank = dict(zip(formed.ranks, made, strict=True))
        ours = in_chunks_and_company(over, mine.groups)
    with torch.inference_mode():
        assert torch.equal(ours, alone(adapted(mine), mine.groups))


@pytest.mark.parametrize("case", ["qwen3-5-1", "qwen2-moe"])
def test_ranks_of_the_reference(case: str) -> None:
    """Their sums are in another order than one worker's."""
    mine = model(case, "float32", "reference")
    with Formed(2) as formed:
        over = ForwardOverRanks(formed, mine)
        made = formed.each(lambda ranks: adapted(mine, ranks))
        over.by_rank = dict(zip(formed.ranks, made, strict=True))
        ours = in_chunks_and_company(over, mine.groups)
    with torch.inference_mode():
        one = alone(adapted(mine), mine.groups)
    assert torch.allclose(ours, one, rtol=1e-3, atol=1e-3)
