"""What adapters take is no more than what is kept free for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock_kernels.cpu.low_rank import LowRankAdapter
from tests.adapter_folders import random_factors, write_peft
from tests.worker.adapters.rig import SMALL, AdapterRig, factors_of
from tests.worker.checkpoints import tiny_files
from tests.worker.cpu_model import CPUModel

EMBEDDING = {"model.embed_tokens": (SMALL.hidden_size, SMALL.vocab_size)}
HEAD = {"lm_head": (SMALL.vocab_size, SMALL.hidden_size)}


@pytest.mark.parametrize("rank", [1, 16, 40, 64])
def test_the_largest_adapter(tmp_path: Path, rank: int) -> None:
    model = CPUModel(SMALL, tiny_files(tmp_path, SMALL), "bfloat16")
    rig = AdapterRig(model, rank=rank, whole_matrices=False)
    layers = factors_of(SMALL, rank, 1) | random_factors(HEAD, rank, 3)
    lengths = {name: np.ones(len(up), np.float32) for name, (_, up) in layers.items()}
    paths = [
        write_peft(tmp_path / "low", layers | random_factors(EMBEDDING, rank, 2)),
        write_peft(tmp_path / "dora", layers, magnitudes=lengths),
    ]
    for path in paths:
        held = rig.hold(path)
        assert isinstance(held, LowRankAdapter)
        assert rig.model.max_loras * held.nbytes <= rig.recipe.adapters.nbytes
    low, dora = (rig.hold(path) for path in paths)
    assert isinstance(low, LowRankAdapter)
    assert isinstance(dora, LowRankAdapter)
    # Nothing is kept free that no adapter takes: factors of everything, and what DoRA adds.
    plain = rig.hold(write_peft(tmp_path / "plain", layers))
    assert isinstance(plain, LowRankAdapter)
    most = low.nbytes + dora.nbytes - plain.nbytes + 8 * SMALL.hidden_size
    assert rig.recipe.adapters.nbytes == rig.model.max_loras * most


def test_whole_matrices(tmp_path: Path) -> None:
    model = CPUModel(SMALL, tiny_files(tmp_path, SMALL), "bfloat16")
    rig = AdapterRig(model, rank=1)
    shape = (SMALL.vocab_size, SMALL.hidden_size)
    names = ("model.embed_tokens.weight", "lm_head.weight")
    whole = {name: np.ones(shape, np.float32) for name in names}
    held = rig.hold(write_peft(tmp_path / "a", factors_of(SMALL, 1, 1), whole=whole))
    assert isinstance(held, LowRankAdapter)
    assert rig.model.max_loras * held.nbytes <= rig.recipe.adapters.nbytes
