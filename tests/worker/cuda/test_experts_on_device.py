"""Experts on CUDA: what stays packed, over ranks, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.model.prepared_model import WeightFiles
from penstock_worker.forward import reference, triton
from penstock_worker.forward.interface import Batch, Forward, Unable
from penstock_worker.layers.experts import MixtureOfExperts
from penstock_worker.layers.triton_experts import PackedExperts
from tests.interpreted_triton import one_kernel_at_a_time
from tests.worker.cpu_model import CPUModel
from tests.worker.models.family_cases import RANKS_ON_DEVICE, read
from tests.worker.parallel.forward_over_ranks import ForwardOverRanks
from tests.worker.parallel.together import Formed
from tests.worker.random_weights import CPU, RandomWeights
from tests.worker.weights.test_alternating import Files, config

pytestmark = pytest.mark.timeout(240)

POSITIONS, EACH = 64, 4
NO_FILES = WeightFiles(format="safetensors", files=(), dtype="float32")


def logits(forward: Forward, groups: int) -> torch.Tensor:
    """Logits of a prompt of five tokens. Each KV group has blocks of its own."""
    tables = [[np.array([group * EACH])] for group in range(groups)]
    tokens = np.array([7, 3, 40, 11, 2])
    batch = Batch(tokens, tables[0], np.array([0]), np.array([5]), tuple(tables[1:]))
    with torch.inference_mode():
        return forward.logits(batch, np.arange(5)).cpu()


def of(model: CPUModel) -> Forward:
    return model.forward(block_size=16, num_blocks=EACH * model.groups, threads=1)


def test_gpt_oss_keeps_its_levels(tmp_path: Path) -> None:
    """What it computes is the plain numbers' model, up to activations in bfloat16."""
    files = Files(tmp_path)
    kept = CPUModel(config(), files.packed, "auto", positions=POSITIONS, backend="triton")
    forward: Any = of(kept)
    mixture = forward._model.layers[0].feed_forward
    assert isinstance(mixture, MixtureOfExperts)
    products = mixture._routed._up, mixture._routed._down
    assert all(isinstance(product, PackedExperts) for product in products)
    plain = CPUModel(config(), files.plain, "float32", positions=POSITIONS, backend="reference")
    ours, wanted = logits(forward, kept.groups), logits(of(plain), plain.groups)
    assert (ours - wanted).abs().max() < 0.05 * wanted.abs().max()


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ranks that are threads."""
    one_kernel_at_a_time(monkeypatch)
    for backend in (triton, reference):
        monkeypatch.setattr(backend, "open_weights", opened)
    with Formed(2) as formed:
        yield formed


def opened(
    _files: Any, _config: Any, dtype: torch.dtype, *, device: torch.device = CPU, **_also: Any
) -> RandomWeights:
    return RandomWeights(dtype, device)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        *RANKS_ON_DEVICE[:3],
        *(pytest.param(case, marks=pytest.mark.long) for case in RANKS_ON_DEVICE[3:]),
    ],
)
def test_two_ranks_compute_the_references_logits(case: str, two: Formed) -> None:
    """With biases, of which one rank adds each; with a shared expert; with latents. With --long,
    models without experts as well."""
    sizes = {"positions": POSITIONS}
    mine = CPUModel(read(case), NO_FILES, "float32", backend="triton", **sizes)
    ours = logits(ForwardOverRanks(two, mine, blocks=EACH * mine.groups), mine.groups)
    one = CPUModel(read(case), NO_FILES, "float32", backend="reference", **sizes)
    wanted = logits(of(one), one.groups)
    assert (ours - wanted).abs().max() < 1e-4 * wanted.abs().max()


def test_quantising_them_on_load_is_refused() -> None:
    model = CPUModel(read("mixtral"), NO_FILES, "auto", quantization="int8", backend="triton")
    with pytest.raises(Unable, match=r"mixture of experts.* is int8, and must be none"):
        triton.recipe(model.prepared(), model.setup(), 1)
