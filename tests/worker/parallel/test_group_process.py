"""Ranks as processes: forming, computing, a rank that dies or freezes, forming again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from penstock.model_config import GenerationDefaults, PreparedModel, WeightFiles
from penstock.protocol.common import TokenSampling
from penstock.protocol.from_worker import Fault
from penstock.protocol.to_worker import NewSequence, Plan, Setup, SlotWork, Stop
from tests.worker.checkpoints import TINY, load_model, tiny_files
from tests.worker.driver import make_runner
from tests.worker.parallel.group_engine import GroupEngine

pytestmark = pytest.mark.timeout(90)

SAMPLING = TokenSampling(7, temperature=0.7)
PROMPT = [1, 2, 3, 40, 50]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> WeightFiles:
    return tiny_files(tmp_path_factory.mktemp("weights"))


@pytest.fixture
def setup(tmp_path: Path, files: WeightFiles) -> Setup:
    prepared = PreparedModel(
        format_version=2,
        name="tiny",
        source="test",
        config=TINY,
        generation=GenerationDefaults(),
        weights=files,
        digest="0" * 64,
        has_chat_template=False,
    )
    (tmp_path / "manifest.json").write_bytes(msgspec.json.encode(prepared))
    return Setup(
        version=1,
        model_dir=str(tmp_path),
        dtype="float32",
        attention_backend="auto",
        threads=1,
        block_size=4,
        num_kv_blocks=2000,
        kv_memory_fraction=0.1,
        max_num_seqs=4,
        max_num_batched_tokens=8192,
        max_model_len=8000,
    )


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., GroupEngine]]:
    engines: list[GroupEngine] = []

    def make(tensor: int, pipeline: int = 1) -> GroupEngine:
        engines.append(GroupEngine(tmp_path, tensor, pipeline))
        return engines[-1]

    yield make
    for engine in engines:
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
        assert [bool(result.slots) for result in results] == [
            rank == lead for rank in engine.ranks
        ]
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
    """Seconds of work."""
    prompt = [at % 300 for at in range(7900)]
    blocks = list(range(8, 8 + 1975))
    new = NewSequence(1, prompt, len(prompt), 0, SAMPLING, blocks)
    return Plan(step, step - 1, [], [new], [SlotWork(1, 0, len(prompt))])


def test_two_stages_of_two(start: Callable[..., GroupEngine], setup: Setup, true: list[int]) -> None:
    engine = start(2, 2)
    assert len({hello.rendezvous for hello in (engine.until(lambda: len(engine.hellos) == 4)
                                               or engine.hellos.values())}) == 4
    readies = engine.form(setup)
    assert len({ready.fingerprint for ready in readies}) == 1
    assert {ready.num_kv_blocks for ready in readies} == {2000}
    assert plans(6, True, by(engine)) == true
    for session in engine.sessions.values():
        engine.hub.send(session, Stop())
    engine.until(lambda: all(worker.poll() is not None for worker in engine.workers.values()))
    assert {worker.returncode for worker in engine.workers.values()} == {0}


def test_a_rank_that_dies_in_mid_step(
    start: Callable[..., GroupEngine], setup: Setup, true: list[int]
) -> None:
    engine = start(2)
    engine.form(setup)
    assert plans(6, False, by(engine)) == true
    kept = engine.workers[0].pid
    engine.send(long_plan(7))
    time.sleep(0.5)
    engine.workers[1].kill()
    begun = time.monotonic()
    (fault,) = engine.hear(Fault, [0])
    assert time.monotonic() - begun < 5
    assert not fault.final
    assert "rank" in fault.message
    engine.drop()
    engine.workers[1].communicate()
    engine.start(1)
    again = engine.form(setup)
    assert engine.workers[0].pid == kept
    assert again[0].num_kv_blocks == 2000
    assert plans(6, False, by(engine)) == true


def test_a_rank_whose_peer_is_frozen_ends_itself(
    start: Callable[..., GroupEngine], setup: Setup
) -> None:
    engine = start(2)
    engine.form(setup)
    engine.workers[1].send_signal(signal.SIGSTOP)
    engine.send(long_plan(1))
    time.sleep(1.0)
    engine.drop()
    begun = time.monotonic()
    assert engine.workers[0].wait(20) == 1
    assert time.monotonic() - begun < 9
    assert "doesn't answer" in engine.workers[0].stderr.read()


def test_an_engine_that_leaves_in_mid_step_finds_both_again(
    start: Callable[..., GroupEngine], setup: Setup, true: list[int]
) -> None:
    engine = start(1, 2)
    first = engine.form(setup)
    engine.send(long_plan(1))
    time.sleep(0.3)
    engine.drop()
    again = engine.form(setup)
    assert again == first, "the weights stayed: even their load_seconds are the same"
    assert plans(6, True, by(engine)) == true


def test_a_pool_that_has_shrunk_is_agreed_on(
    start: Callable[..., GroupEngine], setup: Setup
) -> None:
    """A rank that comes anew has less room: the others keep theirs and use less of it."""
    engine = start(2)
    assert {one.num_kv_blocks for one in engine.form(setup)} == {2000}
    engine.drop()
    engine.until(lambda: len(engine.hellos) == 2)
    engine.number += 1
    less = msgspec.structs.replace(setup, num_kv_blocks=1990)
    from penstock.protocol.from_worker import Ready
    from penstock.protocol.to_worker import RankGroup

    for rank in (0, 1):
        group = RankGroup(
            tensor=2,
            pipeline=1,
            rank=rank,
            rendezvous=engine.hellos[0].rendezvous,
            number=engine.number,
        )
        own = setup if rank == 0 else less
        engine.hub.send(engine.sessions[rank], msgspec.structs.replace(own, group=group))
    assert {one.num_kv_blocks for one in engine.hear(Ready)} == {1990}
