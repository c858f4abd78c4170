"""Kernels that are compiled after a model is ready are counted, as no step may wait for one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton

from penstock_kernels.triton.compilations import tell_of_compilations
from penstock_worker.loading.kernels import triton_kernels
from penstock_worker.metrics.counts import WorkerCounts
from penstock_worker.metrics.phases import Phases
from penstock_worker.metrics.port import families_of
from testing.model_configs import varied
from tests.worker.cuda.simulated.device import Device
from tests.worker.cuda.simulated.machine import Machine
from tests.worker.cuda.simulated.torch_cuda import simulated
from tests.worker.cuda.small_models import GROUPED, prompt
from tests.worker.device.plans import Ahead
from tests.worker.driver import Job

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def counts() -> Any:
    made = WorkerCounts()
    yield made
    tell_of_compilations(None)


def late(counts: WorkerCounts) -> float:
    """The count as Prometheus reads it."""
    (family,) = (
        each
        for each in families_of(counts, Phases())
        if each.name == "penstock:worker_late_compilations"
    )
    return float(family.samples[0].value)


def test_triton_tells_of_each(counts: WorkerCounts, caplog: pytest.LogCaptureFixture) -> None:
    triton_kernels().tell_of_compilations(counts.compiled_late)
    told: Any = triton.knobs.runtime.jit_post_compile_hook
    given = {"key": "", "repr": "", "compile": {}}
    more = {"is_manual_warmup": False, "already_compiled": False}
    assert told(fn=SimpleNamespace(name="attend"), **given, **more) is None
    assert (counts.late_compilations, late(counts)) == (1, 1.0)
    assert "compiled while the model served" in caplog.text
    triton_kernels().tell_of_compilations(None)
    assert triton.knobs.runtime.jit_post_compile_hook is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("rehearsed", [True, False])
def test_what_the_rehearsal_lacks_is_counted(
    rehearsed: bool, counts: WorkerCounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt that ends in a chunk of three, for which there is a kernel of its own."""
    if not rehearsed:
        monkeypatch.setattr(
            "penstock_worker.forward.triton_build.rehearsed_steps", lambda *_, **__: ()
        )
    with simulated(Device(1 << 30, computes=False, pace=1)) as device:
        config = varied(GROUPED, num_layers=1)
        made = Machine(device, config, max_num_batched_tokens=20, max_model_len=64)
        triton_kernels().tell_of_compilations(counts.compiled_late)
        sizes = {"block_size": 4, "num_blocks": made.parts.blocks, "slots": 8, "budget": 20}
        (job,) = Ahead(made, **sizes).run([Job(prompt(config, 23, 1), 3)])
        made.runner.close()
    assert job.error is None
    assert (late(counts) == 0) == rehearsed
