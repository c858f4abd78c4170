"""Memory maps of weight files, as the system sees them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock.errors import UnsupportedModel
from penstock.formats.mapping import map_file, release


def _resident(path: Path) -> int:
    """KiB of a file that are in this process's memory."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            inside = words[-1] == str(path)
        elif inside and words[0] == "Rss:":
            found += int(words[1])
    return found


@pytest.mark.parametrize(
    ("begin", "end"), [(0, 1 << 22), (5000, 3_000_001), (1, 4097), (4096, 4096)]
)
def test_what_is_released_leaves_memory_and_keeps_its_contents(
    tmp_path: Path, begin: int, end: int
) -> None:
    path = tmp_path / "weights"
    content = np.random.default_rng(0).integers(0, 256, 1 << 22, dtype=np.uint8)
    path.write_bytes(content.tobytes())
    whole = np.frombuffer(map_file(path, 1, UnsupportedModel("empty")), np.uint8)
    part = whole[begin:end].reshape(-1, 1)
    assert whole.sum() == content.sum()
    assert _resident(path) == 4096
    release(part)
    # Pages that are only partly its own stay.
    assert _resident(path) <= 4096 - max(0, (end - begin) // 1024 - 8)
    assert np.array_equal(whole, content)


def test_an_array_of_its_own_is_left_alone() -> None:
    """The system would fill it with zeros."""
    own = np.ones(1 << 20, np.uint8)
    release(own)
    release(own[5000:900_000])
    release(np.frombuffer(b"\1" * 100_000, np.uint8))
    assert own.all()
