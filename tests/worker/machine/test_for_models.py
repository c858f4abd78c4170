"""What `penstock recommend` reads of a machine, and how fast memory is read, in bounded time."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.process.machine import usable_memory
from penstock_kernels.cpu.library import instruction_set
from penstock_worker.machine import for_models
from penstock_worker.machine.cpu import usable_threads

MIB = 1 << 20


def clock(monkeypatch: pytest.MonkeyPatch, step: float) -> list[float]:
    """Each look at the clock comes `step` seconds after the one before. Returns what was told."""
    told: list[float] = []

    def look() -> float:
        told.append(len(told) * step)
        return told[-1]

    monkeypatch.setattr(for_models.time, "perf_counter", look)
    return told


@pytest.mark.parametrize(("step", "passes"), [(0.125, 3), (10.0, 1)])
def test_reading_ends_soon_on_a_fast_machine_and_on_a_slow_one(
    monkeypatch: pytest.MonkeyPatch, step: float, passes: int
) -> None:
    told = clock(monkeypatch, step)
    assert for_models.read_bandwidth(2, 4 * MIB) == 4 * MIB / step
    assert len(told) == 2 * passes


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    monkeypatch.setattr(for_models, "free_memory", lambda: 1 << 30)
    monkeypatch.setattr(
        for_models, "read_bandwidth", lambda threads, size: sizes.append((threads, size)) or 1e9
    )
    found = for_models.this_machine()
    assert sizes == [(usable_threads(), 128 * MIB)], "an eighth of what is free"
    assert (found.memory, found.free) == (usable_memory(), 1 << 30)
    assert (found.kernels, found.bandwidth) == (instruction_set(), 1e9)
    assert "128 MiB" in found.measured
    assert "caches may hold a part" in found.measured
    monkeypatch.setattr(for_models, "free_memory", lambda: 8 << 30)
    roomy = for_models.this_machine().measured
    assert "512 MiB" in roomy
    assert "caches" not in roomy


def test_missing_kernels_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise ImportError("no compiler")

    monkeypatch.setattr(for_models, "instruction_set", missing)
    monkeypatch.setattr(for_models, "read_bandwidth", lambda *_: 1e9)
    found = for_models.this_machine()
    assert (found.kernels, found.fast) == ("reference", False)


def test_every_byte_is_read_in_each_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    told, read = clock(monkeypatch, 0.2), []
    reduce = for_models.np.bitwise_or.reduce

    def counted(part: np.ndarray) -> int:
        read.append(part.nbytes)
        return int(reduce(part))

    monkeypatch.setattr(for_models, "READ", counted)
    for_models.read_bandwidth(4, 8 * MIB)
    assert read == [2 * MIB] * 4 * (len(told) // 2)
