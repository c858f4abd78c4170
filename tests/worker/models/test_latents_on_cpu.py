"""Attention over latents on the CPU kernels: a row has the same bits in any company and in any
chunks, by any number of threads, over several splits of its keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from penstock_worker.batch.logits import in_torch
from penstock_worker.forward.interface import Batch
from tests.worker.cpu_model import CPUModel
from tests.worker.models.case_sizes import SIZES
from tests.worker.models.family_cases import CASES
from tests.worker.models.parity import compare
from tests.worker.models.test_parity_families import make_theirs, random_prompts
from tests.worker.models.test_parity_on_cpu import cpu_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

LENGTH = 530
TOKENS = np.random.default_rng(4).integers(0, SIZES["vocab_size"], LENGTH)
COMPANY = np.random.default_rng(5).integers(0, SIZES["vocab_size"], 60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("latents")
    make_theirs(*CASES["deepseek-v2-lite"]).save_pretrained(found)
    return found


def alone(model: CPUModel) -> torch.Tensor:
    forward = model.forward(block_size=16, num_blocks=40, threads=1)
    batch = Batch(TOKENS, [np.arange(34)], np.array([0]), np.array([LENGTH]))
    return in_torch(forward.logits(batch, np.arange(LENGTH)))


def in_chunks_and_company(model: CPUModel, threads: int) -> torch.Tensor:
    forward = model.forward(block_size=16, num_blocks=60, threads=threads)
    mine, other = np.arange(50, 16, -1), np.array([3, 11, 4, 9])
    found, start, beside = [], 0, 0
    for count, more in ((1, 7), (300, 1), (1, 0), (1, 0), (190, 50), (35, 1), (1, 1), (1, 0)):
        tokens = np.concatenate((COMPANY[beside : beside + more], TOKENS[start : start + count]))
        sequences = [(mine, start, count)]
        if more:
            sequences.insert(0, (other, beside, more))
        tables, starts, counts = zip(*sequences, strict=True)
        batch = Batch(tokens, list(tables), np.array(starts), np.array(counts))
        found.append(in_torch(forward.logits(batch, np.arange(more, more + count))))
        start, beside = start + count, beside + more
    return torch.cat(found)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_rows_with_latents_depend_on_their_sequence_alone(folder: Path, dtype: str) -> None:
    plain = cpu_model(folder)
    kept = {"kv_cache_dtype": "int8", "quantization": "int8", "dtype": "auto"}
    model = CPUModel(
        plain.config,
        plain.weights,
        **(kept if dtype == "int8" else {"dtype": dtype}),
        positions=1024,
    )
    one = alone(model)
    assert bool(one.isfinite().all())
    for threads in (1, 2):
        assert torch.equal(one, in_chunks_and_company(model, threads)), threads


def test_more_heads_share_a_latent_than_share_keys_elsewhere(tmp_path: Path) -> None:
    family, settings = CASES["glm47-flash"]
    heads = {"num_attention_heads": 40, "num_key_value_heads": 40}
    theirs = make_theirs(family, settings | heads)
    theirs.save_pretrained(tmp_path)
    prompts = random_prompts()[::3]
    assert compare(cpu_model(tmp_path), theirs, prompts, 16) >= len(prompts) * 4
