"""The tier on disk beside the steps: what is saved, found, read, and left out."""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from penstock.protocol.from_worker import FetchedKV, FoundKV
from penstock.protocol.to_worker import FetchKV, LookUpKV, Save
from penstock_worker.stores import tier
from penstock_worker.stores.disk import SegmentFolder
from penstock_worker.stores.host_cache import HostCache
from penstock_worker.stores.tier import StoreTier
from testing.serving import wait_until
from tests.worker.stores.test_folder import LAYOUT, PAYLOAD, contents, key


class Blocks(HostCache):
    """A KV cache of twenty blocks."""

    def __init__(self, room: int = 20) -> None:
        """room: for copies."""
        whole = np.frombuffer(b"".join(map(contents, range(20))), dtype=np.uint8).copy()
        self._whole, self._room = whole.reshape(20, PAYLOAD), room
        super().__init__([self._whole])

    @property
    def waiting_bytes(self) -> int:
        return self._room * PAYLOAD

    @property
    def data(self) -> list[bytes]:
        return [row.tobytes() for row in self._whole]


@pytest.fixture
def blocks() -> Blocks:
    return Blocks()


@pytest.fixture
def disk(tmp_path: Path, blocks: Blocks) -> Iterator[StoreTier]:
    made = StoreTier(SegmentFolder(tmp_path, LAYOUT, 2**20), blocks, 2**40)
    yield made
    made.close()


def saved(disk: StoreTier, *numbers: int) -> None:
    before = disk.writer.num_written
    disk.save([Save(key(n), n) for n in numbers])
    wait_until(lambda: disk.writer.num_written == before + len(numbers))


def looked_up(disk: StoreTier, *numbers: int) -> FoundKV:
    answers: queue.SimpleQueue[FoundKV | FetchedKV] = queue.SimpleQueue()
    disk.look_up(LookUpKV(7, [key(n) for n in numbers]), answers.put)
    answer = answers.get(timeout=60)
    assert isinstance(answer, FoundKV)
    assert answer.fetch == 7
    return answer


def found(disk: StoreTier, *numbers: int) -> int:
    return looked_up(disk, *numbers).count


def seconds(disk: StoreTier, *numbers: int) -> float:
    """Seconds that reading a block is said to take."""
    return looked_up(disk, *numbers).block_seconds


def fetched(
    disk: StoreTier, numbers: list[int], blocks: list[int], seconds: float = math.inf
) -> int:
    answers: queue.SimpleQueue[FoundKV | FetchedKV] = queue.SimpleQueue()
    disk.fetch(FetchKV(8, [key(n) for n in numbers], blocks, seconds=seconds), answers.put)
    answer = answers.get(timeout=60)
    assert answer == FetchedKV(8, answer.count)
    return answer.count


def test_what_was_saved_is_read_into_other_blocks(disk: StoreTier, blocks: Blocks) -> None:
    saved(disk, 0, 1, 2)
    assert found(disk, 0, 1, 2, 3) == 3
    assert fetched(disk, [0, 1, 2], [11, 12, 10]) == 3
    assert [blocks.data[block] for block in (11, 12, 10)] == [contents(n) for n in range(3)]
    assert disk.blocks() == {"written": 3, "left_out": 0, "damaged": 0}


def test_blocks_of_a_session_that_is_over_are_not_written(disk: StoreTier, blocks: Blocks) -> None:
    saved(disk, 0)
    with disk._filling:  # The disk is just about to fill the block.
        answers: queue.SimpleQueue[FoundKV | FetchedKV] = queue.SimpleQueue()
        disk.fetch(FetchKV(8, [key(0)], [15]), answers.put)
        disk._epoch += 1
    assert answers.get(timeout=60) == FetchedKV(8, 0)
    assert blocks.data[15] == contents(15)
    assert fetched(disk, [0], [15]) == 1


def test_what_is_computed_faster_than_it_is_written_is_left_out(tmp_path: Path) -> None:
    folder = SegmentFolder(tmp_path, LAYOUT, 2**20)
    slow = StoreTier(folder, Blocks(room=3), 1)
    try:
        slow.save([Save(key(n), n) for n in range(20)])
        assert slow.writer.num_left_out >= 20 - 3 - 1
    finally:
        slow.close()  # Without waiting for what it may write in hours.


def test_after_a_change_of_the_model_nothing_is_kept_or_read(
    disk: StoreTier, blocks: Blocks
) -> None:
    saved(disk, 0)
    assert found(disk, 0) == 1
    disk.weights_change()
    disk.save([Save(key(1), 1)])
    assert found(disk, 0) == 0
    assert fetched(disk, [0], [15]) == 0, "what was found before is the former model's"
    assert blocks.data[15] == contents(15)
    assert disk.blocks()["written"] == 1


def test_a_store_that_raises_what_it_should_not_ends_no_thread(
    disk: StoreTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(disk, 0)

    def broken(*_: object) -> None:
        raise RuntimeError("a fault of its own")

    with monkeypatch.context() as faults:
        for name in ("leading", "read", "write"):
            faults.setattr(disk._store, name, broken)
        assert found(disk, 0) == 0
        assert fetched(disk, [0], [15]) == 0
        disk.save([Save(key(1), 1)])
        wait_until(lambda: disk.writer.num_left_out == 1)
    saved(disk, 1)
    assert found(disk, 0, 1) == 2
    assert fetched(disk, [0, 1], [15, 16]) == 2


def test_a_fetch_ends_in_time_however_slow_the_store_is(
    disk: StoreTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks would belong to it, and others wait behind it, for as long as the store takes."""
    saved(disk, 0, 1, 2, 3)
    read, now = disk._store.read, 0.0

    def slowly(key: bytes) -> bytes | None:
        nonlocal now
        now += 1.0
        return read(key)

    monkeypatch.setattr(disk._store, "read", slowly)
    clock = SimpleNamespace(perf_counter=lambda: now, monotonic=time.monotonic)
    monkeypatch.setattr(tier, "time", clock)
    numbers, places = [0, 1, 2, 3], [10, 11, 12, 13]
    assert fetched(disk, numbers, places, seconds=2.0) == 2
    assert fetched(disk, numbers, places) == 4


def test_a_store_that_was_slow_is_tried_again(disk: StoreTier) -> None:
    saved(disk, 0)
    disk._block_seconds = 10.0  # It has just been slow; so nobody reads what is found.
    told = [seconds(disk, 0) for _ in range(200)]
    assert told[0] == 10.0
    assert told == sorted(told, reverse=True)
    assert told[-1] < 0.01
    assert seconds(disk, 99) == told[-1], "where nothing is there, nothing is learnt"
    assert fetched(disk, [0], [15]) == 1
