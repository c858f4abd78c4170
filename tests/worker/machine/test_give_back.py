"""Memory that is given back is the machine's again, and reads as zero."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock_kernels.cpu.memory import zeroed
from penstock_worker.batch.block_copies import BlockCopies
from penstock_worker.machine.memory import give_back_freed, give_back_pages

MIB = 2**20


def resident() -> int:
    """Bytes of this process's own memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def test_blocks_go_and_can_be_written_again() -> None:
    device = [zeroed(32 * MIB).reshape(256, -1) for _ in range(2)]
    copies = BlockCopies(device, 64)
    for part in device:
        part[:] = 7
    full = resident()
    copies.give_back()
    give_back_freed()
    assert full - resident() > 60 * MIB
    for part in device:
        assert not part.any()
        part[255] = 3
        assert part[255].all()


def test_only_whole_pages_go() -> None:
    memory = zeroed(8 * 4096)
    memory[:] = 1
    assert give_back_pages(memory[100 : 3 * 4096]) == 2 * 4096
    assert memory[:4096].all()
    assert not memory[4096 : 3 * 4096].any()
    assert memory[3 * 4096 :].all()
    assert give_back_pages(memory[100:200]) == 0
    assert give_back_pages(np.empty((4, 0), dtype=np.uint8)) == 0
    with pytest.raises(ValueError, match="gaps"):
        give_back_pages(memory.reshape(8, -1)[:, :100])
