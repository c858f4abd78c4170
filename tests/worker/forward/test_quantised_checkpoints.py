"""Quantised checkpoints against the same weights as plain float32: what a folder of the hub's files
holds, from its config.json to logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.worker.cpu_model import CPUModel
from tests.worker.forward.test_cpu_forward import mean_distance, prompts
from tests.worker.models.parity import run_with_logits
from tests.worker.quantised_cases import CASES
from tests.worker.quantised_checkpoints import Checkpoint, write_checkpoint
from tests.worker.quantised_experts import write_experts

pytestmark = pytest.mark.timeout(240)

UNPACKED = ("act-order", "groups of 16", "FP8", "NF4")
"""Cases of which the CPU kernels have no exact counterpart."""


@pytest.fixture(scope="module", params=CASES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("checkpoint")
    return request.param, write_checkpoint(folder / "model", CASES[request.param])


def logits(checkpoint: Checkpoint, *, twin: bool, **options: str) -> list:
    prepared = checkpoint.prepared
    files = checkpoint.twin if twin else prepared.weights
    model = CPUModel(prepared.decoder, files, options.pop("dtype", "auto"), **options)
    return run_with_logits(model, prompts(prepared.decoder, 1, 33, 100), 1)


def test_reference_computes_what_the_weights_mean(checkpoint: tuple[str, Checkpoint]) -> None:
    _, files = checkpoint
    ours = logits(files, twin=False, backend="reference")
    true = logits(files, twin=True, backend="reference")
    for (job, mine), (other, theirs) in zip(ours, true, strict=True):
        assert job.tokens == other.tokens
        assert torch.equal(mine, theirs)


def test_cpu_kernels(checkpoint: tuple[str, Checkpoint]) -> None:
    """Activations become signed bytes where weights are levels. Unpacked weights meet bfloat16 or
    float32, as those of plain checkpoints do."""
    name, files = checkpoint
    ours = logits(files, twin=False)
    true = logits(files, twin=True, backend="reference")
    error = mean_distance(ours, true)
    if any(part in name for part in UNPACKED):
        assert error < 0.03
    else:
        assert 1e-3 < error < 0.09


@pytest.mark.parametrize("name", ["MXFP4", "NVFP4 of Model Optimizer"])
def test_experts_of_4_bits(name: str, tmp_path: Path) -> None:
    files = write_experts(tmp_path / "model", CASES[name])
    error = mean_distance(logits(files, twin=False), logits(files, twin=True, backend="reference"))
    assert 1e-3 < error < 0.09


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_an_explicit_dtype_applies_throughout(tmp_path: Path, dtype: str, backend: str) -> None:
    files = write_checkpoint(tmp_path / "model", CASES["W4A16, asymmetric"])
    ours = logits(files, twin=False, dtype=dtype, backend=backend)
    same = logits(files, twin=True, dtype=dtype, backend=backend)
    assert all(torch.equal(mine, other) for (_, mine), (_, other) in zip(ours, same, strict=True))
