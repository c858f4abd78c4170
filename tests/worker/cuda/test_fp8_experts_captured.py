"""Experts in FP8 on the simulated GPU: captured like others, in half of the memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from penstock_worker.forward import buckets
from penstock_worker.forward.buckets import buckets_of
from tests.worker.cuda.simulated.device import Device
from tests.worker.cuda.simulated.machine import Machine
from tests.worker.cuda.simulated.torch_cuda import simulated
from tests.worker.cuda.small_models import prompt
from tests.worker.device.plans import Ahead
from tests.worker.driver import GREEDY, Job
from tests.worker.quantised_cases import CASES
from tests.worker.quantised_checkpoints import Checkpoint
from tests.worker.quantised_experts import SIZES, write_experts

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
]


@contextmanager
def machine(found: Checkpoint, dtype: str) -> Iterator[Machine]:
    """With shapes only."""
    with simulated(Device(1 << 30, computes=False, pace=1)) as device:
        made = Machine(device, found.config, found.prepared.weights, dtype=dtype)
        try:
            yield made
        finally:
            made.runner.close()


def test_decodes_are_captured_and_nothing_is_compiled_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "MAX_GRAPHS", 2)
    found = write_experts(tmp_path / "model", CASES["FP8, blocks of 128"])
    with machine(found, "auto") as made:
        shapes = len(buckets_of(made.setup, found.config).all)
        assert made.device.captures == shapes
        compiled = set(made.device.launched)
        jobs = [Job(prompt(found.config, 9 + n, n), 4, GREEDY, n) for n in range(3)]
        ahead = Ahead(made, block_size=4, num_blocks=made.parts.blocks, slots=8, budget=40)
        assert [job.error for job in ahead.run(jobs)] == [None] * 3
        assert made.device.captures == shapes
        assert made.device.launched.keys() == compiled
        names = {key[0] for key in compiled}  # type: ignore[index]
    assert "_expert_fp8" in names
    assert "_expert_linear" not in names


def test_a_weight_takes_a_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the scales of an output 4 bytes for each 128 of its inputs."""
    monkeypatch.setattr(buckets, "MAX_GRAPHS", 1)
    found = write_experts(tmp_path / "model", CASES["FP8, blocks of 128"])
    taken = []
    for dtype in ("auto", "bfloat16"):
        with machine(found, dtype) as made:
            taken.append(made.device.allocated)
    sizes = (SIZES[name] for name in ("num_experts", "hidden_size", "moe_intermediate_size"))
    count, hidden, inner = sizes
    weights, scales = 3 * count * hidden * inner, 4 * 2 * count * (2 * inner + hidden)
    assert taken[1] - taken[0] == pytest.approx(weights - scales, rel=0.02)
