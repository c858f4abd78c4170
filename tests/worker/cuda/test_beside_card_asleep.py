"""A worker with experts in the host's memory that sleeps, wakes up, and is given other weights: it
keeps nothing of what it gave up, and computes what it did, or what the others say."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.config.settings import TransportSettings
from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import Setup, Sleep, Stop, ToWorker
from penstock_kernels.cpu import library
from penstock_worker.engine_session import CoreSession, Heard
from penstock_worker.layers import level_experts
from penstock_worker.layers.host_experts import HostExperts
from penstock_worker.metrics.phases import UNWATCHED
from penstock_worker.parallel.membership import Membership
from penstock_worker.worker import Worker
from tests.worker.cuda.beside_card import CASES, COPIED_FROM, copied_some, mixture, prompt
from tests.worker.driver import Driver, Job

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="it is sized for the interpreter"),
]

SIZES = {"block_size": 4, "num_blocks": 64, "slots": 4, "budget": 24}
Words = list[list[int]]


@pytest.fixture(autouse=True)
def copied_early(monkeypatch: pytest.MonkeyPatch, unwarmed: None) -> Iterator[None]:
    before = library.instruction_set()
    monkeypatch.setattr(level_experts, "rows_worth_a_copy", lambda *_: COPIED_FROM)
    yield
    library.use(before)


class Sleeper:
    """A worker whose engine core is the test."""

    def __init__(self, folder: Path) -> None:
        # Nobody is at the session's other end.
        self.session = CoreSession(f"ipc://{folder}/nobody", 0, TransportSettings())
        self.worker = Worker(self.session, UNWATCHED, None, Membership("127.0.0.1"))
        self.session.start()
        self.preempt_every = 0

    def hear(self, *messages: ToWorker) -> None:
        for message in messages:
            self.session.inbox.put(Heard(0, message, first=True))
        self.session.inbox.put(Heard(0, Stop()))
        self.worker.run()

    @property
    def loaded(self) -> Any:
        return self.worker._loaded

    def says(self) -> Words:
        """With copied experts, where the host has any, while sequences are preempted."""
        sampled = TokenSampling(3, temperature=0.9)
        jobs = [Job(prompt(22 + number, number), 4, sampled, number) for number in range(2)]
        Driver(self.loaded.runner, **SIZES, preempt_every=self.preempt_every).run(jobs)
        assert [job.error for job in jobs] == [None] * 2
        assert any(job.preempted for job in jobs) == bool(self.preempt_every)
        self.loaded.runner.reset()
        return [job.tokens for job in jobs]


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Sleeper]:
    usual = gc.get_threshold()
    made = Sleeper(tmp_path)
    try:
        yield made
    finally:
        made.worker.close()
        made.session.close()
        gc.unfreeze()
        gc.set_threshold(*usual)


def setup_of(folder: Path, words: str, **more: Any) -> Setup:
    return Setup(
        version=1,
        model_dir=str(folder),
        dtype="auto",
        attention_backend="triton",
        threads=1,
        block_size=4,
        num_kv_blocks=64,
        kv_memory_fraction=0.5,
        max_num_seqs=4,
        max_num_batched_tokens=24,
        max_model_len=64,
        batch_invariant=True,
        enforce_eager=True,
        cpu_experts=words,
        **more,
    )


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[HostExperts]]:
    """Experts of layers that were loaded into the host's memory, as long as anybody holds them."""
    made: list[weakref.ref[HostExperts]] = []
    check = HostExperts.__post_init__

    def seen(experts: HostExperts) -> None:
        check(experts)
        made.append(weakref.ref(experts))

    monkeypatch.setattr(HostExperts, "__post_init__", seen)
    return made


@pytest.mark.parametrize("case", CASES)
def test_sleep_and_other_weights(
    case: str, sleeper: Sleeper, hosts: list[weakref.ref[HostExperts]], tmp_path: Path
) -> None:
    """On a card both levels give all up. What doesn't fit changes nothing."""
    for number in range(2):
        mixture(tmp_path / f"{number}", case, size=0.25 - 0.05 * number)
    mixture(tmp_path / "floats", case, kind="BF16")
    true: list[Words] = []
    for number in range(2):
        sleeper.hear(setup_of(tmp_path / f"{number}", "0"))
        true.append(sleeper.says())
    assert true[0] != true[1]
    sleeper.preempt_every = 3
    for words in ("1", "all"):
        sleeper.hear(setup_of(tmp_path / "0", words))
        assert sleeper.says() == true[0]
        copied_some(sleeper.loaded)
        for level in (1, 2):
            assert any(each() is not None for each in hosts)
            sleeper.hear(Sleep(level))
            assert all(each() is None for each in hosts)
            sleeper.hear(setup_of(tmp_path / "0", words))
            assert sleeper.says() == true[0]
        sleeper.hear(setup_of(tmp_path / "1", words, trial=True))
        assert sleeper.says() == true[1]
        copied_some(sleeper.loaded)
        sleeper.hear(setup_of(tmp_path / "floats", words, trial=True))
        assert sleeper.loaded is None
        sleeper.hear(setup_of(tmp_path / "0", words))
        assert sleeper.says() == true[0]
    del hosts[:]
