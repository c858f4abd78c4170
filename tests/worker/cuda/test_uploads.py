"""Copies to the device leave alone what it may still read."""

from __future__ import annotations

import numpy as np
import torch

from penstock_worker.forward.uploads import ALIGNMENT, Uploads, room

CPU = torch.device("cpu")


class Slow:
    """A mark that the device passes when told."""

    made: list[Slow]

    def __init__(self) -> None:
        self.behind = 0
        Slow.made.append(self)

    def record(self) -> None:
        self.behind += 1

    def query(self) -> bool:
        return self.behind == 0


def test_arrays_come_out_as_they_went_in() -> None:
    arrays = [np.arange(5), np.arange(12).reshape(3, 4) - 6, np.zeros(0, dtype=np.int64)]
    tensors = Uploads(CPU).send(arrays)
    for tensor, array in zip(tensors, arrays, strict=True):
        assert tensor.dtype == torch.int32
        assert tensor.tolist() == array.tolist()
        assert tensor.storage_offset() % ALIGNMENT == 0


def test_into_memory_that_stays() -> None:
    uploads, place = Uploads(CPU), torch.zeros(100, dtype=torch.int32)
    first = uploads.send([np.arange(3), np.arange(4)], place)
    uploads.send([np.arange(3) + 10, np.arange(4) + 20], place)
    assert [each.tolist() for each in first] == [[10, 11, 12], [20, 21, 22, 23]]
    assert room([np.arange(3), np.arange(4)]) == 2 * ALIGNMENT


def test_a_buffer_on_its_way_is_left_alone() -> None:
    Slow.made = []
    uploads = Uploads(CPU, Slow)
    for _ in range(3):
        uploads.send([np.arange(9)])
    assert len(Slow.made) == 3
    for mark in Slow.made:
        mark.behind = 0
    for _ in range(3):
        uploads.send([np.arange(9)])
    assert len(Slow.made) == 3
    Slow.made[0].behind = 0
    uploads.send([np.arange(100_000)])
    assert len(Slow.made) == 4  # In place of the first, which was too small.
