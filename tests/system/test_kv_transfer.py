"""KV blocks of another engine core's worker: answers have the same bits with them and without,
whatever becomes of that worker in between."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import StartupError
from penstock.protocol.to_worker import FetchKV, ToWorker
from penstock_worker.stores.peers.opening import BlockMemory
from penstock_worker.stores.peers.others import OtherWorkers
from testing.in_process import System
from tests.system.test_disk_kv import (  # noqa: F401
    FLOAT,
    KINDS,
    LONG,
    WAY,
    alone,
    blocks_read,
    folder,
    prompt,
    said,
    tier_of,
)
from tests.system.test_matrix import GREEDY, TINY  # noqa: F401

pytestmark = [pytest.mark.timeout(300)]

ALL = 9 + 7
"""Full blocks of the prompts."""


class Pair:
    """An engine core that computes LONG, and another one that asks it for blocks."""

    def __init__(
        self,
        folder: Path,  # noqa: F811
        place: Path,
        numerics: Any,
        audit_share: float = 0.0,
    ) -> None:
        """audit_share: of the second one."""
        endpoint = f"ipc://{place}/kv.sock"
        self.first = loaded(folder, numerics, replace(WAY, endpoint=endpoint))
        way = replace(WAY, peers=endpoint, audit_share=audit_share)
        self.second = loaded(folder, numerics, way)

    def compute(self) -> None:
        """The first one computes, and keeps all of it."""
        serve(self.first)
        self.first.step()  # What its last steps have finished.
        memory = store_of(self.first)
        assert isinstance(memory, BlockMemory)
        until = time.monotonic() + 60
        while tier_of(self.first).writer.num_waiting and time.monotonic() < until:
            time.sleep(0.01)
        while not len(memory) >= ALL and time.monotonic() < until:
            time.sleep(0.01)

    def connect(self) -> None:
        """The second one reaches the first."""
        asks = store_of(self.second)
        assert isinstance(asks, OtherWorkers)
        assert all(peer.socket.poll(20_000, 2) for peer in asks._peers)

    def close(self) -> None:
        for system in (self.second, self.first):
            assert system.loaded is not None
            system.loaded.runner.close()
            system.core.check()


def store_of(system: System) -> object:
    """What stands behind seals."""
    closing: Any = tier_of(system)._store
    return closing._store._store


def loaded(folder: Path, numerics: Any, way: Any) -> System:  # noqa: F811
    system = System(folder, numerics, way)
    system.submit(400, prompt(5, 0), 1, GREEDY)
    system.run()
    return system


def serve(system: System) -> None:
    for number, request in LONG.items():
        system.submit(number, *request)
        system.run()


@pytest.fixture
def pair(folder: Path, tmp_path: Path) -> Iterator[Pair]:  # noqa: F811
    two = Pair(folder, tmp_path, FLOAT)
    two.compute()
    two.connect()
    yield two
    two.close()


@pytest.mark.parametrize("numerics", KINDS, ids=str)
def test_another_engine_core_has_computed_it(
    folder: Path,  # noqa: F811
    tmp_path: Path,
    numerics: Any,
) -> None:
    two = Pair(folder, tmp_path, numerics)
    two.compute()
    two.connect()
    serve(two.second)
    assert said(two.first) == said(two.second) == alone(folder, numerics)
    assert (blocks_read(two.first), blocks_read(two.second)) == (0, ALL)
    assert two.second.reused >= 9 * 16 + 3 * 7 * 16
    two.close()


def test_a_flipped_bit_is_computed_again(pair: Pair, folder: Path) -> None:  # noqa: F811
    memory = store_of(pair.first)
    assert isinstance(memory, BlockMemory)
    for at, (key, stored) in enumerate(memory._blocks.items()):
        if at % 5 == 4:
            memory._blocks[key] = stored[:-3] + bytes([stored[-3] ^ 1]) + stored[-2:]
    serve(pair.second)
    assert said(pair.second) == alone(folder, FLOAT)
    assert 0 < blocks_read(pair.second) < ALL
    assert pair.second.core.state.counts.disk_blocks_missed > 0
    assert tier_of(pair.second).blocks()["damaged"] > 0


def test_the_other_one_ends_between_answer_and_fetch(
    pair: Pair,
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock_worker.stores.peers.peer.PART_SECONDS", 0.2)
    work = pair.second._work

    def ends(message: ToWorker) -> None:
        if isinstance(message, FetchKV):
            assert pair.first.loaded is not None
            pair.first.loaded.runner.close()
        work(message)

    monkeypatch.setattr(pair.second, "_work", ends)
    serve(pair.second)
    assert said(pair.second) == alone(folder, FLOAT)
    assert blocks_read(pair.second) == 0


def test_models_that_it_does_not_serve_are_refused(tmp_path: Path, folder: Path) -> None:  # noqa: F811
    with pytest.raises(StartupError, match="kv_endpoint is set, but enable_prefix_caching is off"):
        System(folder, FLOAT, replace(WAY, endpoint="ipc:///x", prefix_caching=False))
    with pytest.raises(StartupError, match="'here' is not an endpoint; allowed: ipc://PATH"):
        System(folder, FLOAT, replace(WAY, peers="here"))
    with pytest.raises(StartupError, match="ipc:///x appears twice"):
        System(folder, FLOAT, replace(WAY, peers="ipc:///x,ipc:///x"))
