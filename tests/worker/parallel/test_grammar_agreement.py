"""Masks that are late at one rank are late at all, and stages without samplers don't mind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from penstock.model.prepared_model import WeightFiles
from penstock_worker.grammar.interface import Compile
from penstock_worker.parallel.ranks import Ranks
from tests.worker.checkpoints import TINY, load_model, tiny_files
from tests.worker.driver import Driver, Job, make_runner
from tests.worker.grammar.grammar_tools import EVEN, Evens, compile_now
from tests.worker.parallel.together import Formed, Together

pytestmark = pytest.mark.timeout(300)


def jobs() -> list[Job]:
    return [Job([5, 6, 7], 6, grammar=1), Job(list(range(30, 60)), 6), Job([9], 6, grammar=1)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> WeightFiles:
    folder: Path = tmp_path_factory.mktemp("tiny")
    return tiny_files(folder)


@pytest.fixture(scope="module")
def alone(files: WeightFiles) -> list[list[int]]:
    from penstock_worker.grammar.grammars import SlotGrammars

    grammars = SlotGrammars(Evens(TINY.vocab_size), budget=20.0)
    assert compile_now(grammars, 1, EVEN) is None
    runner = make_runner(load_model(TINY, files, torch.float32), grammars=grammars)
    return [job.tokens for job in Driver(runner).run(jobs())]


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (2, 2)])
def test_a_mask_that_is_late_at_one_rank_defers_at_all(
    files: WeightFiles, alone: list[list[int]], tensor: int, pipeline: int
) -> None:
    libraries: dict[int, Evens] = {}

    def compiles(ranks: Ranks) -> Compile:
        return libraries.setdefault(ranks.place.rank, Evens(TINY.vocab_size))

    with Formed(tensor, pipeline) as formed:
        together = Together(formed, TINY, files, compiles=compiles, budget=0.05)
        for runner in together.runners.values():
            assert compile_now(runner.features, 1, EVEN) is None
        late = libraries[tensor * pipeline - 1]
        late.open.clear()
        driver, running = Driver(together), jobs()
        for _ in range(3):
            driver._step([job for job in running if not job.done])
        # The last rank's masks don't come, and no other rank goes on without it.
        assert [len(job.tokens) for job in (running[0], running[2])] == [0, 0]
        assert min(running[0].deferred, running[2].deferred) == 3
        assert len(running[1].tokens) == 3
        late.open.set()
        driver.run(running)
        together.close()
    assert [job.tokens for job in running] == alone


def test_a_stage_that_samples_nothing_compiles_nothing(files: WeightFiles) -> None:
    with Formed(1, 2) as formed:
        together = Together(formed, TINY, files, compiles=lambda ranks: Evens(TINY.vocab_size))
        first, last = together.runners.values()
        bad = EVEN.__class__("lark", "bad")
        assert compile_now(first.features, 1, bad) is None
        assert compile_now(last.features, 1, bad) == "it is bad"
        together.close()
