"""Heads and draft models by the CUDA kernels: drafts are those of a slow definition, and outputs
those without any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from penstock.model.speculation import SpeculativeConfig
from penstock.protocol.to_worker import Plan
from penstock_worker.forward import buckets
from penstock_worker.loading.load import load
from penstock_worker.loading.loaded import Loaded
from penstock_worker.sampler.device import DeviceSampler
from penstock_worker.steps.in_flight import PendingStep
from tests.worker.cuda.simulated.device import Device, Misuse
from tests.worker.cuda.simulated.machine import COLLECTING
from tests.worker.cuda.simulated.torch_cuda import simulated
from tests.worker.device.plans import Ahead
from tests.worker.driver import Job
from tests.worker.speculation.draft_folders import draft_setup, write_folder
from tests.worker.speculation.drafted_jobs import PENALTIES, SEEDED
from tests.worker.speculation.head_folders import Served, written
from tests.worker.speculation.test_draft_heads import GREEDY, Run, follow
from tests.worker.speculation.test_exactness import same

pytestmark = pytest.mark.timeout(300)
GIB = 1 << 30

CASES = [
    ("Llama", "eagle3", 1),
    ("Qwen3", "eagle3, normed", 1),
    ("Glm4Moe", "mtp", 2),
    ("DeepseekV3", "mtp", 1),
    ("Qwen3Next", "mtp", 1),
]


@pytest.fixture(
    scope="module", params=CASES, ids=[f"{kind}, {head}, {count}" for kind, head, count in CASES]
)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    kind, head, layers = request.param
    return written(kind, head, tmp_path_factory.mktemp("heads"), layers=layers)


def test_drafts_are_those_of_the_definition(served: Served) -> None:
    """A prompt in chunks, steps with drafts, and steps without, which graphs compute."""
    follow(Run(served, "triton"), served, 19, 12, list(range(5, 9)), [0, 2, 0, 2])


# ---- a worker that was loaded with them


def jobs() -> list[Job]:
    """More than once what the head says is mostly right."""
    wants = [GREEDY, SEEDED, PENALTIES]
    return [
        Job([at + 40 * number for at in range(5 + 4 * number)], 7, sampling, number)
        for number, sampling in enumerate(wants)
    ]


def loaded_with(folder: Path, said: dict[str, Any] | None, **changes: Any) -> Loaded:
    small = {
        "batch_invariant": True,
        "block_size": 4,
        "num_kv_blocks": 60,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 24,
        "max_model_len": 48,
        "speculation": said and SpeculativeConfig(**said, num_speculative_tokens=2),
    }
    setup = draft_setup(folder, folder, backend="triton")
    return load(msgspec.structs.replace(setup, **(small | changes)))


def outputs(folder: Path, said: dict[str, Any] | None, **whims: int) -> list[Job]:
    loaded = loaded_with(folder, said)
    sizes = {"block_size": 4, "num_blocks": 60, "slots": 4, "budget": 24}
    try:
        return Ahead(loaded.runner, **(sizes | whims)).run(jobs())
    finally:
        loaded.runner.close()


def model_and_drafts(method: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Returns a prepared model, and the setting of what drafts for it and is often right."""
    if method == "draft_model":
        served, same_model = (write_folder(folder / name) for name in ("served", "itself"))
        return served, {"method": method, "model": str(same_model)}
    kind = "Glm4Moe" if method == "mtp" else "Llama"
    served = written(kind, method, folder, counts=True)
    return served.folder, served.said


METHODS = pytest.mark.parametrize("method", ["eagle3", "mtp", "draft_model"])


@METHODS
def test_outputs_are_those_without_drafts(method: str, tmp_path: Path) -> None:
    """With steps in flight, and sequences that lose their slots."""
    folder, said = model_and_drafts(method, tmp_path)
    true = outputs(folder, None, preempt_every=7)
    found = outputs(folder, said, preempt_every=7, draft=2)
    same(found, true)
    kept, drafted = (sum(getattr(job, what) for job in found) for what in ("kept", "drafted"))
    assert 2 < kept <= drafted
    assert method != "eagle3" or kept < drafted  # Its second draft is mostly wrong.


# ---- on a simulated GPU

ON_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


class Watched:
    """Begins plans, and fails where that waits for anything but tokens."""

    def __init__(self, device: Device, loaded: Loaded) -> None:
        self._device = device
        self._loaded = loaded
        self.waited: set[str] = set()

    def begin(self, plan: Plan) -> PendingStep:
        before = len(self._device.waits)
        step = self._loaded.runner.begin(plan)
        waits = set(self._device.waits[before:])
        if waits - COLLECTING:
            raise Misuse(f"begin waited in {waits - COLLECTING}")
        if not any(work.draft for work in plan.work):
            self.waited |= waits
        return step


@ON_CPU
@METHODS
def test_nothing_is_compiled_later_and_only_drafts_wait(method: str, tmp_path: Path) -> None:
    folder, said = model_and_drafts(method, tmp_path)
    with simulated(Device(GIB, computes=False, pace=1)) as device:
        loaded = loaded_with(
            folder, said, host_kv_bytes=1 << 20, batch_invariant=method != "eagle3",
            attention_backend="auto", dtype="auto",
        )  # fmt: skip
        compiled, captured = set(device.launched), device.captures
        # Of 1, 2 and 4 sequences, and of 16 and 24 rows.
        assert captured == 5 * (2 if method == "draft_model" else 1)
        begins = Watched(device, loaded)
        ahead = Ahead(begins, block_size=4, num_blocks=60, slots=4, budget=24, draft=2, seed=1)
        done = ahead.run([Job(list(range(1, 9 + 5 * n)), 20, GREEDY, n) for n in range(4)])
        assert [job.error for job in done] == [None] * 4
        assert sum(job.drafted for job in done) > 8
        assert begins.waited == set()
        assert device.captures == captured
        # Rows of an odd number of logits are aligned otherwise in the rounds that check drafts.
        later = {key[0] for key in device.launched.keys() - compiled}  # type: ignore[index]
        assert later <= {"_parts", "_join", "_log_probs"}
        loaded.runner.close()


@ON_CPU
@pytest.mark.slow
def test_late_work_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computed late, with buffers that are poison until they were written."""
    monkeypatch.setattr(buckets, "MAX_GRAPHS", 2)
    monkeypatch.setattr(DeviceSampler, "warm_up", lambda *_: None)
    served = written("Llama", "eagle3", tmp_path, counts=True)
    small = {"max_num_seqs": 2, "max_num_batched_tokens": 12, "max_model_len": 24}
    sizes = {"block_size": 4, "num_blocks": 60, "slots": 2, "budget": 12}
    found: list[list[Job]] = []
    for said, draft in ((None, 0), (served.said, 2)):
        with simulated(Device(GIB, pace=2)) as device:
            loaded = loaded_with(served.folder, said, attention_backend="auto", **small)
            some = [Job(list(range(at, at + 5)), 6, GREEDY, at) for at in (3, 60)]
            found.append(Ahead(loaded.runner, draft=draft, **sizes).run(some))
            assert device.captures
            loaded.runner.close()
    same(*reversed(found))
    assert sum(job.kept for job in found[1]) > 0
