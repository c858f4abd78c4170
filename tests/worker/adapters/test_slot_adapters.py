"""Adapters are loaded beside the steps of the default model, stay as long as a slot uses them, and
change no other sequence's bits."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Event
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from penstock.adapters import read_adapter
from penstock.model.prepared_model import PreparedModel
from penstock.protocol.common import TokenSampling
from penstock.protocol.from_worker import AdapterFailed, AdapterReady
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork
from penstock.protocol.worker_resources import DropAdapter, LoadAdapter
from penstock_worker.adapters import slot_adapters
from penstock_worker.adapters.slot_adapters import SlotAdapters
from penstock_worker.batch.slots import PlanError
from penstock_worker.loading.load import load
from penstock_worker.loading.loaded import Loaded
from testing.serving import wait_until
from tests.adapter_folders import write_peft
from tests.worker.adapters.rig import factors_of
from tests.worker.cpu_model import CPUModel
from tests.worker.driver import Driver, Job

MOST = 3
GREEDY = TokenSampling(0, temperature=0.0, logprobs=2)


@pytest.fixture(scope="module")
def loaded(default_folder: Path, default_model: PreparedModel) -> Iterator[Loaded]:
    model = CPUModel(
        default_model.decoder,
        default_model.weights,
        "auto",
        backend="auto",
        max_loras=MOST,
        max_lora_rank=64,
    )
    setup = model.setup(num_blocks=256, threads=2)
    made = load(msgspec.structs.replace(setup, model_dir=str(default_folder)))
    yield made
    made.runner.close()


@pytest.fixture(scope="module")
def folders(
    tmp_path_factory: pytest.TempPathFactory, default_model: PreparedModel
) -> dict[str, Path]:
    """Folders by digest."""
    found = {}
    for number, rank in enumerate((4, 16, 24, 8)):
        folder = tmp_path_factory.mktemp(f"adapter-{number}")
        write_peft(folder, factors_of(default_model.decoder, rank, number, size=0.03), alpha=rank)
        found[read_adapter(folder)[0]] = folder
    return found


class Session:
    """What the engine core says to one worker."""

    def __init__(self, loaded: Loaded) -> None:
        self.runner = loaded.runner
        self.runner.reset()
        self.answers: SimpleQueue[Any] = SimpleQueue()

    def load(self, digest: str, folder: Path) -> Any:
        self.runner.feature(SlotAdapters).load(LoadAdapter(digest, str(folder)), self.answers.put)
        return self.answers.get(timeout=30)

    def drop(self, digest: str) -> None:
        self.runner.feature(SlotAdapters).leave(DropAdapter(digest))
        self.runner.feature(SlotAdapters).drop()


def jobs(digests: list[str]) -> list[Job]:
    random = np.random.default_rng(7)
    return [
        Job(random.integers(0, 49_000, 3 + 5 * at).tolist(), 6, GREEDY, adapter=digest)
        for at, digest in enumerate(digests)
    ]


# Some 150 steps of two threads each: two minutes are too few on cores that others keep busy.
@pytest.mark.timeout(600)
def test_a_crowd_of_adapters_and_preemption(loaded: Loaded, folders: dict[str, Path]) -> None:
    digests = [*list(folders)[:MOST], ""]

    def run(some: list[Job], **options: Any) -> list[tuple[Any, Any]]:
        session = Session(loaded)
        for digest in digests[:MOST]:  # No other one is there for a job that is alone.
            if any(job.adapter == digest for job in some):
                assert session.load(digest, folders[digest]) == AdapterReady(digest)
        done = Driver(session.runner, num_blocks=256, **options).run(some)
        assert all(job.error is None for job in done)
        return [(job.tokens, job.logprobs) for job in done]

    wanted = [*digests, digests[1]]
    alone = [run([job])[0] for job in jobs(wanted)]
    assert run(jobs(wanted)) == alone
    assert run(jobs(wanted), budget=23, preempt_every=4, seed=2) == alone
    # The same prompt gives something else with another adapter.
    same = [run(jobs([digest]))[0] for digest in digests]
    assert len({repr(found) for found in same}) == len(digests)


def test_what_is_used_stays_and_what_is_dropped_is_gone(
    loaded: Loaded, folders: dict[str, Path]
) -> None:
    session, digests = Session(loaded), list(folders)
    for digest in digests[:MOST]:
        session.load(digest, folders[digest])
    refused = session.load(digests[3], folders[digests[3]])
    assert refused == AdapterFailed(digests[3], "3 adapters are loaded (max_loras)")
    first = NewSequence(0, [5, 6, 7], 3, 0, GREEDY, [0], adapter=digests[0])
    session.runner.execute(Plan(1, 0, [], [first], [SlotWork(0, 0, 3)]))
    # The message is heard before a plan that came earlier begins, and another load behind it.
    session.runner.feature(SlotAdapters).leave(DropAdapter(digests[1]))
    assert session.load(digests[3], folders[digests[3]]) == AdapterReady(digests[3])
    second = NewSequence(1, [5, 6, 7], 3, 0, GREEDY, [1], adapter=digests[1])
    session.runner.execute(Plan(2, 1, [], [second], [SlotWork(1, 0, 3)]))
    session.runner.feature(SlotAdapters).drop()
    session.drop(digests[0])
    result = session.runner.execute(Plan(3, 2, [], [], [SlotWork(0, 3, 1), SlotWork(1, 3, 1)]))
    assert [each.error for each in result.slots] == [None, None]
    like = NewSequence(2, [], 3, 1, GREEDY, [2], like=0)
    result = session.runner.execute(Plan(4, 3, [], [like], [SlotWork(2, 0, 3)]))
    assert result.slots[0].error is None
    gone = NewSequence(3, [5, 6, 7], 3, 0, GREEDY, [3], adapter=digests[0])
    with pytest.raises(PlanError, match="is not loaded"):
        session.runner.execute(Plan(5, 4, [], [gone], [SlotWork(3, 0, 3)]))


def test_memory_goes_back(loaded: Loaded, folders: dict[str, Path]) -> None:
    session, (digest, *_) = Session(loaded), folders
    session.load(digest, folders[digest])
    held = weakref.ref(session.runner.feature(SlotAdapters)._entries[digest].held)
    using = NewSequence(0, [5, 6, 7], 3, 0, GREEDY, [0], adapter=digest)
    session.runner.execute(Plan(1, 0, [], [using], [SlotWork(0, 0, 3)]))
    session.drop(digest)
    assert held() is not None
    session.runner.execute(Plan(2, 1, [0], [], []))
    wait_until(lambda: held() is None)  # The thread that loaded it may be about to let go.


def test_a_process_that_loads_and_drops_adapters_stays_as_large(
    loaded: Loaded, folders: dict[str, Path]
) -> None:
    """The size is what the system sees: not only Python lets go."""
    session, digests, sizes = Session(loaded), list(folders), []
    for turn in range(16):
        digest = digests[turn % len(digests)]
        assert session.load(digest, folders[digest]) == AdapterReady(digest)
        held = weakref.ref(session.runner.feature(SlotAdapters)._entries[digest].held)
        using = NewSequence(0, [5, 6, 7], 3, 0, GREEDY, [0], adapter=digest)
        session.runner.execute(Plan(2 * turn + 1, 2 * turn, [], [using], [SlotWork(0, 0, 3)]))
        session.drop(digest)
        session.runner.execute(Plan(2 * turn + 2, 2 * turn + 1, [0], [], []))
        wait_until(lambda held=held: held() is None)
        sizes.append(psutil.Process().memory_info().rss)
    # Four adapters have ranks of 52 together, and 600 kB for each.
    assert min(sizes[12:]) - max(sizes[:4]) < 52 * 600_000


def test_what_cannot_be_loaded_leaves_nothing(
    loaded: Loaded, folders: dict[str, Path], tmp_path: Path
) -> None:
    session = Session(loaded)
    digest, folder = next(iter(folders.items()))
    answer = session.load("0" * 64, folder)
    assert answer.reason == "its files have changed since it was registered"
    answer = session.load(digest, tmp_path / "nowhere")
    assert isinstance(answer, AdapterFailed)
    assert str(tmp_path) not in answer.reason
    assert "is not an adapter" in answer.reason
    for _ in range(MOST):
        assert session.load("1" * 64, folder) != AdapterReady(digest)
    assert session.load(digest, folder) == AdapterReady(digest)


def test_what_was_dropped_meanwhile_is_not_loaded(
    loaded: Loaded, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, (first, second, *_) = Session(loaded), folders
    held, passed, read = Event(), Event(), slot_adapters.read_adapter
    opened: list[Path] = []

    def slowly(path: Path) -> Any:
        opened.append(path)
        held.set()
        passed.wait(30)
        return read(path)

    monkeypatch.setattr(slot_adapters, "read_adapter", slowly)
    for digest in (first, second):
        message = LoadAdapter(digest, str(folders[digest]))
        session.runner.feature(SlotAdapters).load(message, session.answers.put)
    assert held.wait(30)
    session.drop(second)
    passed.set()
    answers = [session.answers.get(timeout=30) for _ in range(2)]
    assert answers[0] == AdapterReady(first)
    assert isinstance(answers[1], AdapterFailed)
    assert opened == [folders[first]]


def test_memory_is_counted(loaded: Loaded, default_model: PreparedModel) -> None:
    model = CPUModel(
        default_model.decoder, default_model.weights, "auto", max_loras=2, max_lora_rank=16
    )
    one = model.recipe().adapters
    more = dataclasses.replace(model, max_loras=4, max_lora_rank=64).recipe().adapters
    assert one is not None
    assert more is not None
    assert more.nbytes > 4 * one.nbytes > 0
    assert dataclasses.replace(model, max_loras=0).recipe().adapters is None
