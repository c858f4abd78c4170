"""Every mechanism of a layer gives a row the same bits in any company and in any chunks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.model.config import ModelConfig
from penstock.model.prepared_model import WeightFiles
from penstock_worker.attention.interface import CacheShape
from penstock_worker.attention.reference import ReferenceAttention
from penstock_worker.batch.logits import in_torch
from penstock_worker.forward.cpu import backend as cpu
from penstock_worker.forward.interface import Batch, Forward
from penstock_worker.forward.reference import ReferenceForward
from penstock_worker.models.decoder import DecoderModel
from penstock_worker.weights.opening import DummyWeights
from tests.worker.cpu_model import CPUModel
from tests.worker.models.case_sizes import SIZES
from tests.worker.models.family_cases import CASES, read
from tests.worker.models.test_parity_on_cpu import REFUSED
from tests.worker.random_weights import RandomWeights

BLOCK, POSITIONS = 16, 256
EACH = 32
"""Blocks of a KV group."""
NO_FILES = WeightFiles(format="safetensors", files=(), dtype="float32")
TOKENS = np.random.default_rng(4).integers(0, SIZES["vocab_size"], 100)
COMPANY = np.random.default_rng(5).integers(0, SIZES["vocab_size"], 70)


def forward(config: ModelConfig, dtype: torch.dtype) -> ReferenceForward:
    model = DecoderModel(config, DummyWeights(dtype, torch.device("cpu")), POSITIONS)
    return ReferenceForward(model, ReferenceAttention(CacheShape.of(config, BLOCK, dtype), 32))


def batch_of(
    groups: int, tokens: np.ndarray, tables: list[np.ndarray], starts: list[int], counts: list[int]
) -> Batch:
    """Each KV group has blocks of its own."""
    first, *more = ([table + group * EACH for table in tables] for group in range(groups))
    return Batch(tokens, first, np.array(starts), np.array(counts), tuple(more))


def alone(of: Forward, groups: int = 1) -> torch.Tensor:
    batch = batch_of(groups, TOKENS, [np.arange(7)], [0], [len(TOKENS)])
    return in_torch(of.logits(batch, np.arange(len(TOKENS))))


def in_chunks_and_company(of: Forward, groups: int = 1) -> torch.Tensor:
    """In chunks of 1, 15, 50, 33 and 1 tokens, over scattered blocks, beside another sequence."""
    mine, other = np.arange(25, 18, -1), np.array([3, 11, 4, 9, 2])
    found, start, beside = [], 0, 0
    for count, more in ((1, 7), (15, 1), (50, 60), (33, 1), (1, 1)):
        tokens = np.concatenate((COMPANY[beside : beside + more], TOKENS[start : start + count]))
        batch = batch_of(groups, tokens, [other, mine], [beside, start], [more, count])
        found.append(in_torch(of.logits(batch, np.arange(more, more + count))))
        start, beside = start + count, beside + more
    return torch.cat(found)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", CASES)
def test_rows_depend_on_their_sequence_alone(case: str) -> None:
    config = read(case)
    for dtype in (torch.float32, torch.bfloat16):
        with torch.inference_mode():
            one, other = (
                alone(forward(config, dtype)),
                in_chunks_and_company(forward(config, dtype)),
            )
        assert bool(one.isfinite().all())
        assert one.std() > 0
        assert torch.equal(one, other)


def made(model: CPUModel, threads: int) -> Forward:
    return model.forward(block_size=BLOCK, num_blocks=EACH * model.groups, threads=threads)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("case", [case for case in CASES if case not in REFUSED])
def test_on_the_cpu_kernels(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "open_weights", lambda *ignored, **also: RandomWeights())
    for dtype in ("float32", "bfloat16"):
        model = CPUModel(read(case), NO_FILES, dtype, positions=POSITIONS)
        groups = model.groups
        one, other = (
            alone(made(model, threads=1), groups),
            in_chunks_and_company(made(model, threads=2), groups),
        )
        assert bool(one.isfinite().all())
        assert one.std() > 0
        assert torch.equal(one, other)
