"""Pipeline stages, and tensor ranks in each, on GPUs that are simulated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from penstock.model.prepared_model import WeightFiles
from penstock.protocol.common import LogitsAdjustments, TokenSampling
from penstock.protocol.to_worker import NewSequence, Plan, Setup, SlotWork
from penstock_worker.forward.buckets import buckets_of
from penstock_worker.grammar.grammars import SlotGrammars
from penstock_worker.loading import load as loading
from penstock_worker.parallel.errors import GroupLost
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.steps.errors import OutOfDeviceMemory
from testing.model_configs import varied
from tests.worker.checkpoints import load_model, tiny_files
from tests.worker.cuda.simulated.device import Device
from tests.worker.cuda.simulated.machine import Even
from tests.worker.cuda.simulated.ranks import AheadInStages, OnDevices, Pipeline
from tests.worker.cuda.simulated.torch_cuda import simulated_ranks
from tests.worker.cuda.small_models import GROUPED, prompt
from tests.worker.device.plans import Ahead
from tests.worker.driver import GREEDY, Job, make_runner
from tests.worker.grammar.grammar_tools import EVEN, compile_now

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
]

GIB = 1 << 30
LAYOUTS = [(1, 2), (2, 2)]
"""Tensor ranks of a stage, stages."""
DEEP = varied(GROUPED, num_layers=3)

DRAWN = TokenSampling(5, temperature=0.9, top_k=20, top_p=0.9, min_p=0.01, logprobs=2)
COUNTED = TokenSampling(
    3, temperature=0.9, adjustments=LogitsAdjustments(presence=1.5, repetition=1.3, bias={7: 2.0})
)
BANNED = TokenSampling(
    9, temperature=1.8, adjustments=LogitsAdjustments(bad_words=((11,), (3, 12)))
)
TELLING = TokenSampling(5, temperature=1.1, prompt_logprobs=2)


@contextmanager
def pipeline(
    tensor: int,
    stages: int,
    *,
    computes: bool = False,
    pace: int | None = None,
    config: Any = GROUPED,
    files: WeightFiles | None = None,
    **changes: Any,
) -> Iterator[Pipeline]:
    ranks = range(tensor * stages)
    devices = [
        Device(GIB, computes=computes, pace=None if pace is None else pace + rank) for rank in ranks
    ]
    with simulated_ranks(devices) as hosts, OnDevices(hosts, tensor, stages) as formed:
        made = Pipeline(formed, config, files, **changes)
        yield made
        made.close()


@pytest.fixture
def even_grammars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grammar 1 allows even ids."""

    def made(prepared: object, setup: Setup, ranks: Ranks) -> SlotGrammars:
        grammars = SlotGrammars(Even(97), budget=20.0, agree=ranks.any)
        compile_now(grammars, 1, EVEN)
        return grammars

    monkeypatch.setattr(loading, "_grammars", made)


def jobs() -> list[Job]:
    """One tells of its prompt, in steps of several passes."""
    wants = [GREEDY, DRAWN, COUNTED, BANNED]
    made = [Job(prompt(GROUPED, 9 + 4 * n, n), 5, each, n) for n, each in enumerate(wants)]
    telling = Job(prompt(GROUPED, 600, 8), 4, TELLING)
    bound = Job(prompt(GROUPED, 6, 9), 4, DRAWN, grammar=1)
    return [*made, telling, bound]


@pytest.mark.usefixtures("even_grammars")
@pytest.mark.parametrize(
    ("tensor", "stages", "eager"), [(1, 2, False), (2, 2, False), (1, 3, False), (2, 2, True)]
)
def test_every_feature_and_nobody_waits(tensor: int, stages: int, eager: bool) -> None:
    sizes = {"max_num_batched_tokens": 140, "enforce_eager": eager}
    with pipeline(tensor, stages, pace=1, config=DEEP, **sizes) as made:
        runs = ahead(made, depth=stages + 1, preempt_every=7)
        assert [job.error for job in runs.run(jobs())] == [None] * len(jobs())
        assert runs.most_in_flight >= stages
        # Nothing follows a step that samples: rules and grammars find all tokens known.
        assert made.waited == set()
        captures = {device.captures for device in made.formed.hosts.devices}
        assert captures == ({0} if eager else {len(buckets_of(made.setup, GROUPED).all)})


def ahead(made: Pipeline, **more: Any) -> AheadInStages:
    setup = made.setup
    sizes = {"block_size": 4, "num_blocks": made.blocks, "slots": setup.max_num_seqs}
    return AheadInStages(made, **(sizes | {"budget": setup.max_num_batched_tokens} | more))


TINY: dict[str, Any] = {
    "dtype": "float32",
    "max_num_seqs": 2,
    "max_num_batched_tokens": 5,
    "max_model_len": 16,
    "num_kv_blocks": 8,
}


POISON = 96
"""A token whose embedding isn't finite."""


def few() -> list[Job]:
    """Jobs of chunks that follow one another, and with log-probabilities of the prompt, which can't
    be had in one."""
    plain = TokenSampling(3, temperature=0.0)
    told = TokenSampling(4, temperature=0.8, prompt_logprobs=1)
    return [
        Job(prompt(GROUPED, 13, 3), 3, plain),
        Job(prompt(GROUPED, 6, 2), 1, told, 1),
        Job([5, POISON, *prompt(GROUPED, 5, 4)], 1, told),
    ]


def poisoned_files(folder: Path) -> WeightFiles:
    files = tiny_files(folder, GROUPED)
    tensors = load_file(files.files[0])
    tensors["model.embed_tokens.weight"][POISON] = torch.nan
    save_file(tensors, files.files[0])
    return files


def by_one_process(files: WeightFiles, jobs: list[Job]) -> Ahead:
    runner = make_runner(
        load_model(GROUPED, files, torch.float32), block_size=4, num_blocks=8, slots=2
    )
    runs = Ahead(runner, block_size=4, num_blocks=8, slots=2, budget=5, depth=1)
    runs.run(jobs)
    runner.close()
    return runs


@pytest.mark.slow
@pytest.mark.usefixtures("unwarmed")
@pytest.mark.parametrize(("tensor", "stages"), LAYOUTS)
def test_tokens_are_the_references(tmp_path: Path, tensor: int, stages: int) -> None:
    files = poisoned_files(tmp_path)
    with pipeline(tensor, stages, computes=True, files=files, **TINY) as made:
        runs = ahead(made, depth=3)
        found = runs.run(few())
        told = runs.told_of(found[1])
        assert runs.most_in_flight >= 2
        assert all(device.captures for device in made.formed.hosts.devices)
    true = few()
    alone = by_one_process(files, true)
    assert [(job.tokens, job.error) for job in found] == [(job.tokens, job.error) for job in true]
    assert [each.top_ids for each in told] == [each.top_ids for each in alone.told_of(true[1])]
    assert len(told) == 5
    assert "not finite" in (found[2].error or "")


def first_step() -> Plan:
    new = NewSequence(0, prompt(GROUPED, 5, 1), 5, 0, GREEDY, [0, 1])
    return Plan(1, 0, [], [new], [SlotWork(0, 0, 5)])


@pytest.mark.parametrize("full", [(0,), (1,), (2,), (3,), (1, 2), (0, 1, 2, 3)])
def test_ranks_without_room_end_their_step_and_all_form_again(full: tuple[int, ...]) -> None:
    with pipeline(2, 2) as made:
        devices = made.formed.hosts.devices
        for rank in full:
            devices[rank].total = devices[rank].allocated + 1000
        failed = made.outcomes(first_step())
        assert OutOfDeviceMemory in {failed[rank] for rank in full}
        assert {failed[rank] for rank in range(4) if rank not in full} <= {GroupLost, None}
        for device in devices:
            device.total = GIB
        made.form_again()
        assert [job.error for job in ahead(made, depth=3).run(jobs()[:2])] == [None] * 2


@pytest.mark.parametrize("fresh", [(), (1,)])
def test_ranks_of_a_further_group_compute_and_capture_the_same_before_they_are_ready(
    fresh: tuple[int, ...],
) -> None:
    """Whether all have loaded the model, or the process of one is new."""
    with pipeline(2, 1, max_num_seqs=2) as made:
        before = [device.captures for device in made.formed.hosts.devices]
        made.form_again(*(made.formed.ranks[rank] for rank in fresh))
        after = [device.captures for device in made.formed.hosts.devices]
        assert after == [2 * count for count in before]
        again = ahead(made, depth=2, slots=2).run(jobs()[:2])
        assert [job.error for job in again] == [None] * 2
        assert [device.captures for device in made.formed.hosts.devices] == after
