"""Copies of blocks against a slow model of the same, and in a forward pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.protocol.to_worker import Copy
from penstock_worker.batch.block_copies import BlockCopies
from penstock_worker.batch.slots import PlanError
from penstock_worker.device import block_copies
from penstock_worker.device.block_copies import DeviceBlockCopies
from tests.interpreted_triton import DEVICE
from tests.worker.cuda.small_models import GROUPED, queued


def test_any_copies_are_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_copies, "STAGED_BLOCKS", 2)
    choose = np.random.default_rng(0)
    start = choose.integers(0, 256, (3, 5, 40), dtype=np.uint8)
    other = choose.integers(0, 256, (2, 10, 24), dtype=np.uint8)
    device, two = (torch.from_numpy(each.copy()).to(DEVICE) for each in (start, other))
    # The second one has the blocks of two groups, one behind another.
    caches = [device, *two.chunk(2, 1)]
    slow = BlockCopies([part.copy() for each in caches for part in each.cpu().numpy()], 4)
    fast = DeviceBlockCopies(caches, 4)
    # The host's blocks hold something that is known.
    plans = [[Copy("out", block, block) for block in range(4)]]
    plans += [
        [
            Copy(kind, int(choose.integers(0, 4)), int(choose.integers(0, 4)))
            for kind in choose.choice(["device", "out", "in", "in"], 6)
        ]
        for _ in range(8)
    ]
    for plan in plans:
        slow.make(plan)
        fast.make(plan)
        found = [part for each in caches for part in each.cpu().numpy()]
        assert all(np.array_equal(*each) for each in zip(found, slow._device, strict=True))
    assert fast.host_blocks == 4
    assert fast.device_bytes == start.nbytes + other.nbytes
    assert fast.seconds() > 0


def test_a_block_that_does_not_exist() -> None:
    copies = DeviceBlockCopies([torch.zeros(1, 3, 8, dtype=torch.uint8, device=DEVICE)], 0)
    with pytest.raises(PlanError, match=r"host block 0 is not in \[0, 0\)"):
        copies.make([Copy("out", 0, 0)])
    with pytest.raises(PlanError, match=r"device block 3 is not in \[0, 3\)"):
        copies.make([Copy("device", 3, 0)])
    assert copies.seconds() == 0.0


def test_a_block_of_the_cache_is_all_of_its_tokens() -> None:
    attention = queued(GROUPED).attention
    numbers = torch.arange(attention.cache.numel()).view(attention.cache.shape)
    with torch.inference_mode():
        attention.cache.copy_(numbers)
    copies = DeviceBlockCopies([attention.blocks()], 1)
    copies.make([Copy("out", 2, 0), Copy("in", 0, 7), Copy("device", 2, 9)])
    moved, size = attention.cache.cpu(), attention.shape.block_size
    slots = numbers.unflatten(3, (-1, size)).float()
    slots[:, :, :, [7, 9]] = slots[:, :, :, [2, 2]]
    assert torch.equal(moved, slots.flatten(3, 4))
