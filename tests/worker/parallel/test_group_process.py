"""Ranks as processes: forming, computing, a rank that dies or freezes, forming again."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from penstock.model.prepared_model import WeightFiles
from penstock.protocol.common import TokenSampling
from penstock.protocol.from_worker import Fault, Progress
from penstock.protocol.to_worker import NewSequence, Plan, Setup, SlotWork, Stop
from testing.processes import freeze
from tests.worker.checkpoints import TINY, load_model, tiny_files, tiny_setup
from tests.worker.driver import make_runner
from tests.worker.parallel.group_engine import SHORT, GroupEngine, run_held_rank, run_rank_over_tcp

pytestmark = pytest.mark.timeout(400)

SAMPLING = TokenSampling(7, temperature=0.7)
PROMPT = [1, 2, 3, 40, 50]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> WeightFiles:
    return tiny_files(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory, files: WeightFiles) -> Setup:
    return tiny_setup(tmp_path_factory.mktemp("model"), files, threads=1)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupEngine]:
    """Two tensor ranks, which outlive a test as workers outlive a session."""
    engine = GroupEngine(tmp_path_factory.mktemp("pair"), 2, run=run_held_rank)
    yield engine
    engine.close()


def plans(wanted: int, staged: bool, tell: Callable[[Plan], int]) -> list[int]:
    """One sequence's tokens. tell: carries a plan out, gives the token."""
    new = NewSequence(0, PROMPT, len(PROMPT), 0, SAMPLING, list(range(8)))
    tokens = [tell(Plan(1, 0, [], [new], [SlotWork(0, 0, len(PROMPT))]))]
    for step in range(2, wanted + 1):
        known = len(PROMPT) + len(tokens)
        work = SlotWork(0, known - 1, 1, [], tokens[-1:] if staged else [])
        tokens.append(tell(Plan(step, step - 1, [], [], [work])))
    return tokens


def by(engine: GroupEngine) -> Callable[[Plan], int]:
    def tell(plan: Plan) -> int:
        results = engine.step(plan)
        lead = engine.tensor * (engine.pipeline - 1)
        assert [bool(result.slots) for result in results] == [rank == lead for rank in engine.ranks]
        hashes = {result.sampled for result in results[lead:]}
        assert len(hashes) == 1
        assert hashes != {0}
        assert all(result.sampled == 0 for result in results[:lead])
        return results[lead].slots[0].token

    return tell


@pytest.fixture(scope="module")
def true(files: WeightFiles) -> list[int]:
    """What one process samples."""
    runner = make_runner(load_model(TINY, files, torch.float32), block_size=4)
    tokens = plans(6, False, lambda plan: runner.execute(plan).slots[0].token)
    runner.close()
    return tokens


def long_plan(step: int) -> Plan:
    """A step that stays."""
    prompt = list(range(2 * SHORT))
    blocks = list(range(8, 8 + SHORT))
    new = NewSequence(1, prompt, len(prompt), 0, SAMPLING, blocks)
    return Plan(step, step - 1, [], [new], [SlotWork(1, 0, len(prompt))])


def test_two_stages_of_two(tmp_path: Path, setup: Setup, true: list[int]) -> None:
    engine = GroupEngine(tmp_path, 2, 2)
    try:
        readies = engine.form(setup)
        assert len({hello.rendezvous for hello in engine.hellos.values()}) == 4
        assert len({ready.fingerprint for ready in readies}) == 1
        assert {ready.num_kv_blocks for ready in readies} == {2000}
        assert plans(6, True, by(engine)) == true
        engine.send(Stop())
        engine.until(lambda: all(one.exitcode is not None for one in engine.workers.values()))
        assert {one.exitcode for one in engine.workers.values()} == {0}
    finally:
        engine.close()


def test_an_engine_that_leaves_in_mid_step_finds_all_again(
    pair: GroupEngine, setup: Setup, true: list[int]
) -> None:
    first = pair.form(setup)
    assert plans(6, False, by(pair)) == true
    pair.send(long_plan(7))
    pair.hear(Progress)
    pair.drop()
    again = pair.form(setup)
    assert again == first, "the weights stayed: even their load_seconds are the same"
    assert plans(6, False, by(pair)) == true
    pair.drop()


def test_a_rank_that_dies_in_mid_step(pair: GroupEngine, setup: Setup, true: list[int]) -> None:
    pair.form(setup)
    kept = pair.workers[0].pid
    pair.send(long_plan(1))
    pair.hear(Progress)
    pair.workers[1].kill()
    (fault,) = pair.hear(Fault, [0])
    assert not fault.final
    assert "another rank was lost" in fault.message
    pair.drop()
    pair.workers[1].join(60)
    pair.start(1)
    # The one that comes anew has less room: the other keeps its pool, and uses less of it.
    less = msgspec.structs.replace(setup, num_kv_blocks=1990)
    ready = pair.form(setup, {1: less})
    assert pair.workers[0].pid == kept
    assert {one.num_kv_blocks for one in ready} == {1990}
    assert plans(6, False, by(pair)) == true
    pair.drop()
    assert "[c10d]" not in pair.said(0), "torch has logged what the worker says itself"


def wait_for_frozen(pair: GroupEngine, setup: Setup) -> None:
    """Rank 0 waits for rank 1, which is frozen, when its session ends."""
    pair.form(setup)
    freeze(pair.workers[1].pid)
    new = NewSequence(0, PROMPT, len(PROMPT), 0, SAMPLING, [0, 1])
    pair.send(Plan(1, 0, [], [new], [SlotWork(0, 0, len(PROMPT))]))
    pair.hear(Progress, [0])  # A second has passed: it waits for the other.
    pair.drop()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors use gloo")
def test_a_rank_that_shares_memory_with_a_frozen_one_goes_on(tmp_path: Path, setup: Setup) -> None:
    pair = GroupEngine(tmp_path, 2)
    try:
        wait_for_frozen(pair, setup)
        pair.until(lambda: "the session ended while another rank was waited for" in pair.said(0))
        pair.until(lambda: 0 in pair.sessions)
        assert pair.workers[0].exitcode is None
    finally:
        pair.close()


def test_a_rank_whose_peer_is_frozen_ends_itself(tmp_path: Path, setup: Setup) -> None:
    pair = GroupEngine(tmp_path, 2, run=run_rank_over_tcp)
    try:
        wait_for_frozen(pair, setup)
        pair.workers[0].join(100)  # The collective itself would have ten minutes.
        assert pair.workers[0].exitcode == 1
        assert "doesn't answer" in pair.said(0)
    finally:
        pair.close()
