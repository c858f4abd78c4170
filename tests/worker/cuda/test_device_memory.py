"""The KV pool's size, from a device that is made up."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from penstock.errors import StartupError
from penstock_worker.device.memory import MemoryUsage, device_kv_blocks, measure

GIB = 1 << 30


@dataclass
class MadeUp:
    """others: bytes that are not the allocator's.  kept: that it keeps beyond its tensors."""

    others: int = 3 * GIB
    tensors: int = 16 * GIB
    kept: int = 0
    top: int = 0
    calls: list[str] = field(default_factory=list)

    def total(self) -> int:
        return 80 * GIB

    def free(self) -> int:
        return self.total() - self.others - self.reserved()

    def reserved(self) -> int:
        return self.tensors + self.kept

    def allocated(self) -> int:
        return self.tensors

    def peak(self) -> int:
        return self.top

    def forget_peak(self) -> None:
        self.top = self.tensors

    def release(self) -> None:
        self.kept = 0

    def wait(self) -> None:
        self.calls.append("wait")

    def step(self, size: int) -> None:
        """Takes memory and gives it back; others come to have some more meanwhile."""
        self.top = max(self.top, self.tensors + size)
        self.kept = max(self.kept, size)
        self.others += GIB // 2


def measured(device: MadeUp, graphs: int = 4) -> MemoryUsage:
    return measure(
        device,
        lambda: device.step(5 * GIB),
        lambda: device.step(2 * GIB),
        graphs=graphs,
        graph_bytes=GIB // 4,
    )


def test_a_rehearsal_says_what_steps_take() -> None:
    device = MadeUp()
    usage = measured(device)
    assert usage == MemoryUsage(
        total=80 * GIB, others=4 * GIB, weights=16 * GIB, steps=5 * GIB, graphs=3 * GIB
    )
    assert device.calls == ["wait", "wait"]
    assert measured(MadeUp(), graphs=0).graphs == 0


def test_the_pool_is_what_is_left() -> None:
    usage = measured(MadeUp())
    left = int(0.9 * 80 * GIB) - (4 + 16 + 5 + 3) * GIB - int(0.8 * GIB)
    sizes = {"block_bytes": GIB // 64, "utilization": 0.9, "useful": 10**6}
    assert device_kv_blocks(usage, wanted=None, **sizes) == left // (GIB // 64)
    assert device_kv_blocks(usage, wanted=None, **{**sizes, "useful": 7}) == 7
    # What is asked for may go beyond the share, up to what is there.
    most = usage.left(1.0) // (GIB // 64)
    assert device_kv_blocks(usage, wanted=most, **sizes) == most
    with pytest.raises(StartupError, match=rf"num_kv_blocks is {most + 1}, .* weights 16\.00 GiB"):
        device_kv_blocks(usage, wanted=most + 1, **sizes)


def test_each_kv_group_needs_a_block() -> None:
    usage = measured(MadeUp())
    sizes = {"block_bytes": GIB // 64, "utilization": 0.9, "useful": 10**6, "least": 7}
    assert device_kv_blocks(usage, wanted=7, **sizes) == 7
    with pytest.raises(StartupError, match="num_kv_blocks is 6; this model needs at least 7"):
        device_kv_blocks(usage, wanted=6, **sizes)
    few = {**sizes, "block_bytes": 8 * GIB}
    with pytest.raises(StartupError, match=r"the 7 blocks that a token needs take 56\.00 GiB"):
        device_kv_blocks(usage, wanted=None, **few)


def test_what_is_lacking_is_named() -> None:
    usage = measured(MadeUp(others=60 * GIB))
    with pytest.raises(
        StartupError, match=r"gpu_memory_utilization.*other processes.*have 61\.00 GiB"
    ):
        device_kv_blocks(usage, block_bytes=GIB, utilization=0.9, wanted=None, useful=10)


def test_a_step_that_does_not_fit() -> None:
    def no_room() -> None:
        raise torch.OutOfMemoryError("tried to allocate 9 GiB")

    with pytest.raises(StartupError, match="max_num_batched_tokens or max_num_seqs must be less"):
        measure(MadeUp(), no_room, lambda: None, graphs=0, graph_bytes=0)
