"""A device's cache as blocks that are kept elsewhere: the bytes of a CPU's, and the order of copies
and steps, on a GPU that is simulated."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.errors import StartupError
from penstock.protocol.to_worker import Copy
from penstock_worker.batch.slots import PlanError
from penstock_worker.device import staging, stored_cache
from penstock_worker.device.block_copies import DeviceBlockCopies
from penstock_worker.device.stored_cache import DeviceCache
from penstock_worker.stores.cache import CopiedBlock
from penstock_worker.stores.host_cache import HostCache
from tests.worker.cuda.simulated.device import Device
from tests.worker.cuda.simulated.tensors import CUDA
from tests.worker.cuda.simulated.torch_cuda import simulated

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
]

BLOCKS, ROOM = 12, 5


@pytest.fixture
def device() -> Iterator[Device]:
    """It does nothing before somebody waits, and all at the end."""
    with simulated(Device(1 << 26)) as made, torch.inference_mode():
        yield made
        torch.cuda.synchronize()


class Caches:
    """The blocks of a layer with three parts and of one with two, on the device and on a CPU."""

    def __init__(self) -> None:
        choose = np.random.default_rng(0)
        sizes = [(3, BLOCKS, 32), (2, BLOCKS, 16)]
        self.start = [choose.integers(0, 256, size, dtype=np.uint8) for size in sizes]
        self.tensors = [torch.from_numpy(each.copy()).to(CUDA) for each in self.start]
        self.host = HostCache([part.copy() for each in self.start for part in each])
        self.cache = DeviceCache(self.tensors, BLOCKS)
        self.cache.reserve(ROOM)

    def step_writes(self, block: int, value: int) -> None:
        """Writes as a step does, on the stream that computes."""
        for each in self.tensors:
            each[:, block].fill_(value)

    def expected(self, block: int) -> bytes:
        (copy,) = self.host.copy_out([block])
        return bytes(copy.contents())

    def found(self, block: int) -> bytes:
        """What a step reads that is queued now."""
        parts = []
        for each in self.tensors:
            parts += [part.tobytes() for part in fetched(each[:, block].contiguous())]
        return b"".join(parts)


def fetched(values: Tensor) -> np.ndarray:
    """Waits for the stream that computes, and for no other."""
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    done = torch.cuda.Event()
    done.record()
    done.synchronize()
    array: np.ndarray = host.numpy().copy()
    return array


def taken(copies: list[CopiedBlock]) -> list[bytes]:
    found = [bytes(copy.contents()) for copy in copies]
    for copy in copies:
        copy.release()
    return found


@pytest.fixture
def caches(device: Device, monkeypatch: pytest.MonkeyPatch) -> Caches:
    """Three blocks are gathered at a time, and one is scattered."""
    monkeypatch.setattr(staging, "MAX_STAGED_BLOCKS", 3)
    return Caches()


def test_bytes_are_those_of_a_cpu(caches: Caches) -> None:
    assert caches.cache.widths == caches.host.widths
    blocks = [7, 0, 3, 11, 0]
    assert taken(caches.cache.copy_out(blocks)) == [caches.expected(block) for block in blocks]


def test_filled_blocks_are_those_of_a_cpu(caches: Caches) -> None:
    contents = {block: bytes([block]) * sum(caches.cache.widths) for block in (2, 9, 4, 5)}
    for cache in (caches.cache, caches.host):
        filling = cache.fill([*contents])
        for block, data in contents.items():
            filling.await_room()
            filling.write(block, data)
        filling.close()
        filling.wait()
    for block in range(BLOCKS):
        assert caches.found(block) == caches.expected(block)
        assert (block in contents) == (caches.found(block) == contents.get(block))


def test_a_copy_is_of_what_was_there_before_what_is_queued_next(caches: Caches) -> None:
    before = [caches.expected(block) for block in (1, 2, 6, 7)]
    copies = caches.cache.copy_out([1, 2, 6, 7])
    caches.cache.overwriting([2])
    caches.step_writes(2, 0)
    assert caches.found(2) == bytes(len(before[1]))  # The step is done, and nobody took the copy.
    assert taken(copies) == before


def test_a_step_that_does_not_wait_would_spoil_the_copy(caches: Caches) -> None:
    """So that the test before would fail."""
    copies = caches.cache.copy_out([2])
    caches.step_writes(2, 0)
    assert not any(caches.found(2))
    assert not any(taken(copies)[0])


def test_a_copy_is_of_what_was_queued_before(caches: Caches) -> None:
    caches.step_writes(3, 5)
    (data,) = taken(caches.cache.copy_out([3]))
    assert data == bytes([5]) * len(data)


def test_steps_wait_for_copies_of_their_own_blocks_only(caches: Caches, device: Device) -> None:
    copies = caches.cache.copy_out([1, 2])
    before = device.main.end
    caches.cache.overwriting([0, 3, -1])
    assert device.main.end == before
    caches.cache.overwriting([3, 1])
    assert device.main.end == before + 1
    taken(copies)
    caches.cache.overwriting([1, 2])
    assert device.main.end == before + 1, "they have been made"


def test_nobody_waits_where_copies_are_queued(caches: Caches, device: Device) -> None:
    before = list(device.waits)
    caches.cache.copy_out([1, 2, 3, 4, 5])
    caches.cache.overwriting(range(BLOCKS))
    filling = caches.cache.fill([6, 7])
    filling.write(6, bytes(sum(caches.cache.widths)))
    filling.close()
    caches.cache.settle()
    assert device.waits == before


def test_there_are_no_more_copies_than_there_is_room_for(caches: Caches) -> None:
    copies = caches.cache.copy_out(range(8))
    assert len(copies) == ROOM
    assert caches.cache.copy_out([9]) == []
    expected = [caches.expected(block) for block in (2, 9, 10)]
    copies[0].release()
    copies[3].release()
    again = caches.cache.copy_out([9, 10, 11])
    assert len(again) == 2
    assert taken([copies[2], *again]) == expected


def test_blocks_come_after_all_that_may_still_use_them(caches: Caches, device: Device) -> None:
    """Copies to the host tier still use them, with the contents before."""
    swap = DeviceBlockCopies(caches.tensors, 1)
    before = caches.expected(4)
    swap.make([Copy("out", 4, 0)])
    filling = caches.cache.fill([4])
    filling.write(4, bytes(len(before)))
    filling.close()
    filling.wait()
    swap.make([Copy("in", 0, 5)])
    assert caches.found(5) == before
    assert not any(caches.found(4))


def test_a_copy_is_made_before_its_block_is_filled(caches: Caches) -> None:
    before = caches.expected(4)
    copies = caches.cache.copy_out([4])
    filling = caches.cache.fill([4])
    filling.write(4, bytes(len(before)))
    filling.close()
    filling.wait()
    assert not any(caches.found(4))
    assert taken(copies) == [before]


def test_what_has_not_arrived_is_not_there(caches: Caches) -> None:
    """A step that didn't wait would read what was there before."""
    before = caches.expected(4)
    filling = caches.cache.fill([4])
    filling.write(4, bytes(len(before)))
    filling.close()
    assert caches.found(4) == before
    filling.wait()
    assert not any(caches.found(4))


def test_what_comes_after_all_copies(caches: Caches) -> None:
    """A session is over while blocks are on their way, and the next one uses them."""
    before = caches.expected(1)
    copies = caches.cache.copy_out([1])
    filling = caches.cache.fill([4])
    filling.write(4, bytes(len(before)))
    filling.close()
    caches.cache.settle()
    for block in (1, 4):
        caches.step_writes(block, 9)
        assert set(caches.found(block)) == {9}
    torch.cuda.synchronize()
    assert set(caches.found(4)) == {9}
    assert taken(copies) == [before]


def test_kernels_are_compiled_before_the_first_copy(caches: Caches, device: Device) -> None:
    compiled = set(device.launched)
    assert {key[0] for key in compiled} == {"_copy"}
    taken(caches.cache.copy_out([1, 5, 2, 9, 3]))
    filling = caches.cache.fill([6, 7])
    for block in (6, 7):
        filling.await_room()
        filling.write(block, bytes(sum(caches.cache.widths)))
    filling.close()
    filling.wait()
    assert set(device.launched) == compiled


def test_without_memory_on_the_device_blocks_are_left_out(caches: Caches, device: Device) -> None:
    total, device.total = device.total, device.allocated
    assert caches.cache.copy_out([1, 2]) == []
    device.total = total
    assert len(caches.cache.copy_out(range(ROOM))) == ROOM


def test_a_block_that_does_not_exist(caches: Caches) -> None:
    with pytest.raises(PlanError, match=r"device block 12 is not in \[0, 12\)"):
        caches.cache.copy_out([3, 12])
    with pytest.raises(PlanError, match=r"device block -1 is not in \[0, 12\)"):
        caches.cache.fill([-1])


def test_more_than_the_hosts_memory_is_refused(
    caches: Caches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "free_memory", lambda: 10_000)
    with pytest.raises(StartupError, match="not enough memory for 1000 KV blocks on their way"):
        caches.cache.reserve(1000)


def test_a_step_of_blocks_may_wait_to_be_written(
    caches: Caches, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = sum(caches.cache.widths)
    monkeypatch.setattr(stored_cache, "WAITING_BYTES", 5 * each)
    for step, most in ((3, 5), (7, 7), (100, 20)):
        monkeypatch.setattr(stored_cache, "MAX_WAITING_BYTES", 20 * each)
        assert DeviceCache(caches.tensors, step).waiting_bytes == most * each
