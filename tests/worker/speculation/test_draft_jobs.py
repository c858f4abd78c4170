"""A draft model under a worker that was loaded with it: what it says changes nothing but how many
steps there are."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock.protocol.common import TokenSampling
from penstock_worker.loading.load import load
from testing.model_configs import varied
from tests.worker.driver import GREEDY, Driver, Job
from tests.worker.speculation.draft_folders import SERVED, draft_setup, write_folder
from tests.worker.speculation.drafted_jobs import PENALTIES, SEEDED
from tests.worker.speculation.test_exactness import same

OTHER = varied(SERVED, hidden_size=32, num_heads=2, num_kv_heads=1, num_layers=1, vocab_size=176)
"""With rows of padding behind the vocabulary."""
WANTED = 30


def jobs() -> list[Job]:
    prompts = [[5, 6, 7], [at * at % 150 + 3 for at in range(50)], list(range(20, 60))]
    samplings = [GREEDY, SEEDED, TokenSampling(3, temperature=0.7), PENALTIES]
    return [
        Job(list(prompt), WANTED, sampling, index)
        for prompt in prompts
        for index, sampling in enumerate(samplings)
    ]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "served": write_folder(root / "served"),
        "itself": write_folder(root / "itself"),
        "other": write_folder(root / "other", OTHER, seed=1),
    }


def run(folders: dict[str, Path], backend: str, draft: str, **whims: int) -> list[Job]:
    setup = draft_setup(folders["served"], folders[draft], backend=backend)
    if draft == "served":
        setup = msgspec.structs.replace(setup, speculation=None)
    loaded = load(setup)
    try:
        options = {
            "num_blocks": 80,
            "slots": 12,
            "budget": 64,
            "draft": 0 if draft == "served" else 4,
        }
        return Driver(loaded.runner, **(options | whims)).run(jobs())
    finally:
        loaded.runner.close()


@pytest.fixture(scope="module", params=["cpu", "reference"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def undisturbed(folders: dict[str, Path], backend: str) -> list[Job]:
    return run(folders, backend, "served")


def test_a_model_that_drafts_for_itself_is_always_right(
    folders: dict[str, Path], backend: str, undisturbed: list[Job]
) -> None:
    """Greedy and seeded: it makes the draws that the served model makes. Only penalties, which it
    doesn't know, part them."""
    found = run(folders, backend, "itself", preempt_every=9)
    same(found, undisturbed)
    agreeing = [job for job in found if job.sampling is not PENALTIES]
    assert sum(job.preempted for job in found) >= 2
    for job in agreeing:
        assert job.kept == job.drafted > WANTED // 2


def test_a_model_that_is_always_wrong_costs_no_token(
    folders: dict[str, Path], backend: str, undisturbed: list[Job]
) -> None:
    found = run(folders, backend, "other")
    same(found, undisturbed)
    assert sum(job.drafted for job in found) > 500
    assert sum(job.kept for job in found) < 0.1 * sum(job.drafted for job in found)
