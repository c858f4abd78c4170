"""Pipeline stages, and tensor ranks in each, on GPUs that are simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from penstock.model_config import WeightFiles
from penstock.protocol.common import Adjustments, TokenSampling
from penstock.protocol.to_worker import NewSequence, Plan, Setup, SlotWork
from penstock_worker import loading
from penstock_worker.forward.stage_ends import StageEnds
from penstock_worker.grammar import Grammars
from penstock_worker.parallel.errors import GroupLost
from penstock_worker.parallel.ranks import Ranks
from penstock_worker.pending import OutOfDeviceMemory
from penstock_worker.sampler.device import DeviceSampler
from tests.worker.checkpoints import load_model, tiny_files
from tests.worker.cuda.simulated.device import Device, Misuse
from tests.worker.cuda.simulated.machine import CAPTURING, COLLECTING, Even
from tests.worker.cuda.simulated.ranks import AheadInStages, OnDevices, Pipeline
from tests.worker.cuda.simulated.torch_cuda import simulated_ranks
from tests.worker.cuda.small_models import GROUPED, prompt
from tests.worker.device.plans import Ahead
from tests.worker.driver import GREEDY, Job, make_runner
from tests.worker.grammar_tools import EVEN, compile_now

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
]

GIB = 1 << 30
LAYOUTS = [(1, 2), (2, 2)]
"""Tensor ranks of a stage, stages."""
DEEP = msgspec.structs.replace(GROUPED, num_layers=3)

DRAWN = TokenSampling(5, temperature=0.9, top_k=20, top_p=0.9, min_p=0.01, logprobs=2)
COUNTED = TokenSampling(
    3, temperature=0.9, adjustments=Adjustments(presence=1.5, repetition=1.3, bias={7: 2.0})
)
BANNED = TokenSampling(9, temperature=1.8, adjustments=Adjustments(bad_words=((11,), (3, 12))))
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

    def made(prepared: object, setup: Setup, ranks: Ranks) -> Grammars:
        grammars = Grammars(Even(97), budget=20.0, agree=ranks.any)
        compile_now(grammars, 1, EVEN)
        return grammars

    monkeypatch.setattr(loading, "_grammars", made)


def jobs() -> list[Job]:
    wants = [GREEDY, DRAWN, COUNTED, BANNED]
    made = [Job(prompt(GROUPED, 9 + 4 * n, n), 5, each, n) for n, each in enumerate(wants)]
    telling = Job(prompt(GROUPED, 150, 8), 4, TELLING)
    bound = Job(prompt(GROUPED, 6, 9), 4, DRAWN, grammar=1)
    return [*made, telling, bound]


@pytest.mark.usefixtures("even_grammars")
@pytest.mark.parametrize(
    ("tensor", "stages", "eager"), [(1, 2, False), (2, 2, False), (1, 3, False), (2, 2, True)]
)
def test_every_feature_and_nobody_waits(tensor: int, stages: int, eager: bool) -> None:
    with pipeline(tensor, stages, pace=1, config=DEEP, enforce_eager=eager) as made:
        runs = ahead(made, depth=stages + 1, preempt_every=7)
        assert [job.error for job in runs.run(jobs())] == [None] * len(jobs())
        assert runs.most_in_flight == stages + 1
        # Nothing follows a step that samples: rules and grammars find all tokens known.
        assert made.waited == (set() if eager else CAPTURING)
        captures = {device.captures for device in made.formed.hosts.devices}
        assert captures == {0} if eager else len(captures) == 1 and min(captures) > 1


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


def few() -> list[Job]:
    """Of chunks that follow one another, and with log-probabilities of the prompt."""
    told = TokenSampling(4, temperature=0.8, prompt_logprobs=2)
    return [Job(prompt(GROUPED, 13, 3), 3), Job(prompt(GROUPED, 7, 2), 2, told, 1)]


def by_one_process(files: WeightFiles, jobs: list[Job]) -> Ahead:
    runner = make_runner(
        load_model(GROUPED, files, torch.float32), block_size=4, num_blocks=8, slots=2
    )
    runs = Ahead(runner, block_size=4, num_blocks=8, slots=2, budget=5, depth=1)
    runs.run(jobs)
    runner.close()
    return runs


@pytest.fixture
def unwarmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted, it takes long."""
    monkeypatch.setattr(DeviceSampler, "warm_up", lambda *_: None)


@pytest.mark.usefixtures("unwarmed")
@pytest.mark.parametrize(("tensor", "stages"), LAYOUTS)
def test_tokens_are_the_references(tmp_path: Path, tensor: int, stages: int) -> None:
    files = tiny_files(tmp_path, GROUPED)
    with pipeline(tensor, stages, computes=True, files=files, **TINY) as made:
        runs = ahead(made, depth=3)
        found = runs.run(few())
        told = runs.told_of(found[1])
        assert runs.most_in_flight == 3
        assert all(device.captures for device in made.formed.hosts.devices)
    true = few()
    alone = by_one_process(files, true)
    assert [(job.tokens, job.error) for job in found] == [(job.tokens, job.error) for job in true]
    assert [each.top_ids for each in told] == [each.top_ids for each in alone.told_of(true[1])]
    assert len(told) == 6


def first_step() -> Plan:
    new = NewSequence(0, prompt(GROUPED, 5, 1), 5, 0, GREEDY, [0, 1])
    return Plan(1, 0, [], [new], [SlotWork(0, 0, 5)])


@pytest.mark.parametrize("full", range(4))
def test_a_rank_without_room_fails_alone_and_all_form_again(full: int) -> None:
    with pipeline(2, 2) as made:
        formed = made.formed
        device = formed.hosts.devices[full]
        device.total = device.allocated + 1000
        failed = made.outcomes(first_step())
        assert failed.pop(full) is OutOfDeviceMemory
        assert set(failed) <= {GroupLost, None}
        device.total = GIB
        formed.form_again()
        made.reset()
        assert [job.error for job in ahead(made, depth=3).run(jobs()[:2])] == [None] * 2


def test_what_a_next_step_overwrites_must_not_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage whose graphs leave their result where the last one's is still on its way."""
