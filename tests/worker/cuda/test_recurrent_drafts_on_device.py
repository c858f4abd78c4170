"""Drafts for models with recurrent layers by the CUDA kernels: states go back behind wrong ones,
and outputs are those without any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.model.kv_layout import state_of
from penstock_worker.forward import triton
from penstock_worker.loading import tensors
from tests.interpreted_triton import DEVICE
from tests.worker.cuda.test_heads_on_device import loaded_with
from tests.worker.device.plans import Ahead
from tests.worker.driver import GREEDY, Job
from tests.worker.models.manifests import write_manifest
from tests.worker.models.test_recurrent_models import read
from tests.worker.random_weights import RandomWeights
from tests.worker.speculation.drafted_jobs import PENALTIES, SEEDED
from tests.worker.speculation.head_folders import written
from tests.worker.speculation.test_exactness import same

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SUFFIX = {"method": "suffix"}
LOOKED_UP = [
    "lfm2",
    *(pytest.param(each, marks=pytest.mark.long) for each in ("qwen3-next", "granite-hybrid")),
]
EVERY = 8


def jobs(wanted: int) -> list[Job]:
    return [
        Job([at + 40 * number for at in range(5 + 4 * number)], wanted, sampling, number)
        for number, sampling in enumerate([GREEDY, SEEDED, PENALTIES])
    ]


def outputs(
    folder: Path, said: dict[str, Any] | None, *wanted: list[Job], **whims: int
) -> list[Job]:
    """Outputs of some jobs after others, with steps in flight, and checkpoints between drafts."""
    loaded = loaded_with(folder, said, num_kv_blocks=400, state_checkpoint_tokens=EVERY)
    sizes: dict[str, Any] = {"block_size": 4, "num_blocks": 400, "slots": 4, "budget": 24}
    states = state_of(loaded.ready.kv_groups)
    assert states is not None
    try:
        ahead = Ahead(loaded.runner, states=states, **(sizes | whims))
        return [job for some in wanted for job in ahead.run(some)]
    finally:
        loaded.runner.close()


def predicted(true: list[Job], wanted: int) -> list[Job]:
    """What is to come, with wrong tokens in it."""
    found = jobs(wanted)
    for job, output in zip(found, true, strict=True):
        job.prediction = [*output.tokens[:4], 2, *output.tokens[4:7], 5, 6, *output.tokens[7:]]
    return found


@pytest.fixture
def folder_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    monkeypatch.setattr(triton, "open_weights", lambda *_, **__: RandomWeights(device=DEVICE))
    monkeypatch.setattr(tensors, "check_tensors", lambda prepared: None)  # There are no files.

    def make(case: str) -> Path:
        write_manifest(read(case), tmp_path, case)
        return tmp_path

    return make


@pytest.mark.parametrize("case", LOOKED_UP)
def test_wrong_drafts_leave_no_trace(folder_of: Callable[[str], Path], case: str) -> None:
    """Alone, and in a crowd whose sequences lose their slots: as together without drafts."""
    folder, wanted = folder_of(case), 10
    true = outputs(folder, None, jobs(wanted))
    alone = [[job] for job in predicted(true, wanted)]
    found = outputs(
        folder, SUFFIX, *alone, predicted(true, wanted), draft=3, preempt_every=6, seed=1
    )
    same(found, true * 2)
    for some in (found[:3], found[3:]):
        kept, drafted = (sum(getattr(job, what) for job in some) for what in ("kept", "drafted"))
        assert 3 < kept < drafted
    assert any(job.preempted for job in found[3:])


@pytest.mark.parametrize("case", [pytest.param("lfm2", marks=pytest.mark.long)])
def test_there_are_as_many_snapshots_as_memory_allows(
    folder_of: Callable[[str], Path], case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single sequence's drafts always have some; the others' are cut off."""
    monkeypatch.setattr("penstock_worker.states.snapshots.MOST_BYTES", 1)
    folder = folder_of(case)
    true = outputs(folder, None, jobs(8))
    found = outputs(folder, SUFFIX, predicted(true, 8), draft=2)
    same(found, true)
    assert sum(job.kept for job in found) > 0


@pytest.mark.long
def test_a_head_drafts_for_recurrent_layers(tmp_path: Path) -> None:
    served = written("Qwen3Next", "mtp", tmp_path, counts=True)
    true = outputs(served.folder, None, jobs(7), preempt_every=7)
    found = outputs(served.folder, served.said, jobs(7), preempt_every=7, draft=2)
    same(found, true)
    kept, drafted = (sum(getattr(job, what) for job in found) for what in ("kept", "drafted"))
    assert 2 < kept <= drafted
