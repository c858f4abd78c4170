"""Engines whose FP8 caches have unlike calculated scales are never taken for one another."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.protocol.to_worker import LookUpKV, Save
from penstock_worker.forward.backends import choose
from penstock_worker.forward.interface import DeviceRecipe
from penstock_worker.loading.loaded import Loaded
from penstock_worker.stores.tier import StoreTier
from testing.serving import wait_until
from tests.interpreted_triton import one_kernel_at_a_time
from tests.worker.checkpoints import tiny_files
from tests.worker.cpu_model import CPUModel
from tests.worker.cuda.small_models import GROUPED, load_on_device

KEY = bytes(32)
FEW, MANY = 1, 24
"""Tokens of the trial step, which has a step's budget. The largest numbers of so many differ."""

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _one_kernel_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    one_kernel_at_a_time(monkeypatch)


@contextmanager
def engine(folder: Path, budget: int, *, calculated: bool) -> Iterator[Loaded]:
    """One that keeps KV in a folder which all share."""
    model = CPUModel(GROUPED, tiny_files(folder, GROUPED), "float32", "fp8", backend="triton")
    changes: dict[str, Any] = {
        "max_num_seqs": 1,
        "max_num_batched_tokens": budget,
        "max_model_len": 32,
        "disk_kv_dir": str(folder / "kv"),
        "disk_kv_bytes": 2**24,
        "disk_kv_write_bytes": 2**30,
        "calculate_kv_scales": calculated,
        "enforce_eager": True,
    }
    setup = msgspec.structs.replace(model.setup(block_size=4, num_blocks=8), **changes)
    recipe = choose(model.prepared(), setup, 1)
    assert isinstance(recipe, DeviceRecipe)
    loaded = load_on_device(recipe, model.prepared(), setup)
    try:
        yield loaded
    finally:
        loaded.runner.close()


def tier_of(loaded: Loaded) -> StoreTier:
    return loaded.runner.feature(StoreTier)


def found(loaded: Loaded) -> int:
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    tier_of(loaded).look_up(LookUpKV(1, [KEY]), answers.put)
    return int(answers.get(timeout=30).count)


@pytest.mark.parametrize("calculated", [True, False])
def test_other_scales_are_another_fingerprint(tmp_path: Path, calculated: bool) -> None:
    """Without calculated ones, the budget of a step changes nothing, and all find what one kept."""
    with engine(tmp_path, FEW, calculated=calculated) as first:
        tier = tier_of(first)
        tier.save([Save(KEY, 0)])
        wait_until(lambda: tier.blocks()["written"] == 1)
        assert found(first) == 1
    with engine(tmp_path, FEW, calculated=calculated) as again:
        assert (again.ready.fingerprint, found(again)) == (first.ready.fingerprint, 1)
    with engine(tmp_path, MANY, calculated=calculated) as other:
        same = other.ready.fingerprint == first.ready.fingerprint
        assert (same, found(other)) == ((False, 0) if calculated else (True, 1))
