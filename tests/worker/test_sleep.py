"""A worker that sleeps keeps nothing of what its level gives up."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.config.settings import TransportSettings
from penstock.protocol.to_worker import Setup, Sleep, Stop, ToWorker
from penstock_worker.engine_session import CoreSession, Heard
from penstock_worker.loading import load
from penstock_worker.loading.loaded import Loaded
from penstock_worker.metrics.phases import UNWATCHED
from penstock_worker.parallel.membership import Membership
from penstock_worker.worker import Worker
from tests.worker.checkpoints import tiny_setup


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return tiny_setup(tmp_path, num_kv_blocks=100, max_num_batched_tokens=256, max_model_len=256)


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """What runs the steps, of each model that is loaded: as long as anybody holds it."""
    loaded: list[weakref.ref[Any]] = []
    load_model = load.load

    def seen(*arguments: Any) -> Loaded:
        made = load_model(*arguments)
        loaded.append(weakref.ref(made.runner))
        return made

    monkeypatch.setattr(load, "load", seen)
    return loaded


@pytest.fixture
def session(tmp_path: Path) -> CoreSession:
    """Nobody is at its other end; the test puts into its inbox what the worker hears."""
    return CoreSession(f"ipc://{tmp_path}/nobody", 0, TransportSettings())


@pytest.fixture
def worker(session: CoreSession) -> Iterator[Worker]:
    usual = gc.get_threshold()
    worker = Worker(session, UNWATCHED, None, Membership("127.0.0.1"))
    session.start()
    try:
        yield worker
    finally:
        worker.close()
        session.close()
        gc.unfreeze()
        gc.set_threshold(*usual)


@pytest.mark.parametrize("level", [1, 2])
def test_what_a_level_gives_up_is_held_by_nobody(
    worker: Worker,
    session: CoreSession,
    setup: Setup,
    runners: list[weakref.ref[Any]],
    level: int,
) -> None:
    def hear(*messages: ToWorker) -> None:
        for message in messages:
            session.inbox.put(Heard(0, message, first=True))
        session.inbox.put(Heard(0, Stop()))
        worker.run()

    hear(setup)
    assert [each() is not None for each in runners] == [True]
    hear(Sleep(level))
    assert [each() is not None for each in runners] == [level == 1]
    hear(setup)
    assert [each() is not None for each in runners] == ([True] if level == 1 else [False, True])
