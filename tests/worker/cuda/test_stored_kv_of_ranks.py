"""KV that tensor-parallel ranks keep on disk, each its part, from GPUs that are simulated."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from penstock.model.prepared_model import WeightFiles
from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import FetchKV, LookUpKV, NewSequence, Plan, Save, SlotWork
from penstock_worker.stores.tier import StoreTier
from testing.serving import wait_until
from tests.worker.checkpoints import tiny_files
from tests.worker.cuda.simulated.ranks import Pipeline
from tests.worker.cuda.small_models import GROUPED, prompt
from tests.worker.cuda.test_simulated_stages import TINY, pipeline

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.slow,
    pytest.mark.usefixtures("unwarmed"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
]

RANKS, BLOCK = 2, 4
PROMPT = prompt(GROUPED, 9, 3)
KEYS = [bytes([number]) * 32 for number in range(2)]
SAMPLED = TokenSampling(5, temperature=0.9, top_k=20, logprobs=2)
ANSWER = 2

Said = list[bytes]


@contextmanager
def worker(files: WeightFiles, kv: Path) -> Iterator[Pipeline]:
    """Ranks that keep KV in one folder."""
    kept = {"disk_kv_dir": str(kv), "disk_kv_bytes": 2**24, "disk_kv_write_bytes": 2**30}
    sizes = TINY | {"batch_invariant": True, "enforce_eager": True, "pace": 1}
    with pipeline(RANKS, 1, computes=True, files=files, **(sizes | kept)) as made:
        yield made


def answer(made: Pipeline, blocks: Sequence[int], found: int = 0) -> Said:
    """Tokens and their log-probabilities behind PROMPT, of which `found` tokens are computed."""
    new, start, said = NewSequence(0, PROMPT, len(PROMPT), 0, SAMPLED, [*blocks]), found, []
    made.reset()
    for step in range(1, 20):
        count = max(1, min(TINY["max_num_batched_tokens"], len(PROMPT) - start))
        plan = Plan(step, step - 1, [], [new] if step == 1 else [], [SlotWork(0, start, count)])
        for each in made.begin(plan).result().slots:
            assert each.error is None
            if each.token is not None:
                said.append(msgspec.msgpack.encode((each.token, each.logprobs)))
        start += count
        if len(said) == ANSWER:
            break
    return said


def tiers(made: Pipeline) -> list[StoreTier]:
    found = [made.runners[ranks].feature(StoreTier) for ranks in made.formed.ranks]
    return [tier for tier in found if isinstance(tier, StoreTier)]


def keep(made: Pipeline) -> None:
    """The first blocks of the pool."""
    saves = [Save(key, number) for number, key in enumerate(KEYS)]
    made.formed.computing(lambda ranks: made.runners[ranks].feature(StoreTier).save(saves))
    for tier in tiers(made):
        wait_until(lambda tier=tier: tier.blocks()["written"] == len(KEYS))


def told(made: Pipeline, ask: Callable[[Any, Callable[[Any], None]], None]) -> list[int]:
    """Each rank's count."""
    answers = {ranks: queue.SimpleQueue[Any]() for ranks in made.formed.ranks}
    made.formed.computing(lambda ranks: ask(made.runners[ranks], answers[ranks].put))
    return [int(each.get(timeout=60).count) for each in answers.values()]


def fetched(made: Pipeline, blocks: list[int]) -> list[int]:
    found = told(
        made, lambda runner, tell: runner.feature(StoreTier).look_up(LookUpKV(1, KEYS), tell)
    )
    if 0 in found:
        return found
    return told(made, lambda runner, tell: runner.receive(FetchKV(1, KEYS, blocks), tell))


def damage(path: Path) -> None:
    """A bit of the last block that it holds."""
    data = bytearray(path.read_bytes())
    last = max(at for at, value in enumerate(data) if value)
    data[last - 40] ^= 1
    path.write_bytes(data)


def test_each_rank_finds_its_part_again(tmp_path: Path) -> None:
    """After a restart, in other blocks. A part that was damaged is a miss of its rank alone; what
    all ranks have found is used, and the answer is the same."""
    files, kv = tiny_files(tmp_path, GROUPED), tmp_path / "kv"
    with worker(files, kv) as made:
        true = answer(made, [0, 1, 2])
        keep(made)
    assert len(true) == ANSWER
    with worker(files, kv) as made:
        assert fetched(made, [4, 5]) == [2, 2]
        assert answer(made, [4, 5, 6], 2 * BLOCK) == true
        assert answer(made, [5, 4, 6], 2 * BLOCK) != true  # It is read.
    folders = sorted(kv.glob("*/*.kv"))
    assert len({path.parent for path in folders}) == RANKS
    damage(folders[0])
    with worker(files, kv) as made:
        counts = fetched(made, [4, 5])
        assert sorted(counts) in ([0, 2], [1, 2])
        assert sorted(tier.blocks()["damaged"] for tier in tiers(made)) == [0, 1]
        assert answer(made, [4, 5, 6], min(counts) * BLOCK) == true
