"""On the CPU kernels, two ranks give one worker's bits out of every kind of file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from testing.model_configs import varied
from tests.worker.checkpoints import TINY, tiny_files
from tests.worker.cpu_model import CPUModel
from tests.worker.models.test_family_bits import alone
from tests.worker.parallel.forward_over_ranks import ForwardOverRanks
from tests.worker.parallel.together import Formed
from tests.worker.quantised_cases import CASES
from tests.worker.quantised_checkpoints import write_checkpoint
from tests.worker.weights.test_weights import write_gguf

pytestmark = pytest.mark.timeout(120)

CONFIG = varied(
    TINY, hidden_size=64, intermediate_size=96, num_heads=6, num_kv_heads=2, head_dim=32
)


@pytest.fixture(scope="module")
def two() -> Iterator[Formed]:
    with Formed(2) as formed:
        yield formed


def compare(model: CPUModel, two: Formed) -> None:
    true = alone(model.forward(block_size=16, num_blocks=32, threads=1))
    assert bool(true.isfinite().all())
    assert torch.equal(alone(ForwardOverRanks(two, model)), true)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q5_1", "Q8_0"])
def test_gguf(kind: str, tmp_path: Path, two: Formed) -> None:
    """Q and K have their rows in another order in such files."""
    files = write_gguf(tmp_path / "x.gguf", CONFIG, lambda _: kind)
    compare(CPUModel(CONFIG, files, "auto"), two)
    compare(CPUModel(CONFIG, files, "float32"), two)


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_safetensors(quantization: str, tmp_path: Path, two: Formed) -> None:
    files = tiny_files(tmp_path, CONFIG)
    compare(CPUModel(CONFIG, files, "auto", quantization=quantization), two)


@pytest.mark.parametrize("case", CASES)
def test_quantised_checkpoints(case: str, tmp_path: Path, two: Formed) -> None:
    prepared = write_checkpoint(tmp_path / "model", CASES[case]).prepared
    compare(CPUModel(prepared.decoder, prepared.weights, "auto"), two)
