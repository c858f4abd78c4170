"""Free memory and cores as the system and its control groups allow them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from penstock.errors import StartupError
from penstock.model.prepared_model import WeightFiles
from penstock_worker.dtype import compute_dtype
from penstock_worker.machine import cpu, memory

pytestmark = pytest.mark.timeout(240)

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /proc and /sys of our own: 16 GiB available, no limits, cgroup /a/b in both versions."""
    (tmp_path / "meminfo").write_text("MemTotal: 1 kB\nMemAvailable: 16777216 kB\n")
    (tmp_path / "membership").write_text("4:memory:/a/b\n3:cpu,cpuacct:/a/b\n0::/a/b\n")
    for folder in ("fs/a/b", "fs/memory/a/b", "fs/cpu/a/b"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(cpu, "MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(cpu, "ROOT", tmp_path / "fs")
    monkeypatch.setattr(cpu.os, "sched_getaffinity", lambda _: set(range(8)))
    return tmp_path / "fs"


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_no_limit(machine: Path) -> None:
    assert memory.free_memory() == 16 * GIB
    assert cpu.usable_threads() == 8


def test_version_2_limit_above_us(machine: Path) -> None:
    write(machine / "a/b", memory__max="max", memory__current="5", memory__stat="inactive_file 0")
    write(
        machine / "a",
        memory__max=str(8 * GIB),
        memory__current=str(3 * GIB),
        memory__stat=f"anon 9\ninactive_file {GIB}\n",
    )
    assert memory.free_memory() == 6 * GIB


def test_version_1_limit(machine: Path) -> None:
    stat = f"cache 1\ntotal_inactive_file {GIB}\n"
    write(
        machine / "memory/a/b",
        memory__limit_in_bytes=str(4 * GIB),
        memory__usage_in_bytes=str(2 * GIB),
        memory__stat=stat,
    )
    write(
        machine / "memory",
        memory__limit_in_bytes="9223372036854771712",
        memory__usage_in_bytes=str(2 * GIB),
        memory__stat=stat,
    )
    assert memory.free_memory() == 3 * GIB


def test_path_of_the_host_in_a_container(machine: Path) -> None:
    """Only the top of the hierarchy is mounted, though the membership names folders below."""
    cpu.MEMBERSHIP.write_text("0::/elsewhere/x\n")
    write(machine, memory__max=str(2 * GIB), memory__current="0", memory__stat="inactive_file 0")
    assert memory.free_memory() == 2 * GIB


def test_cpu_quota_in_both_versions(machine: Path) -> None:
    write(machine / "a", cpu__max="250000 100000")
    assert cpu.usable_threads() == 3
    write(machine / "cpu/a/b", cpu__cfs_quota_us="50000")
    assert cpu.usable_threads() == 1
    write(machine / "cpu/a/b", cpu__cfs_quota_us="-1")
    write(machine / "a", cpu__max="max 100000")
    assert cpu.usable_threads() == 8


def test_more_threads_than_processors_are_capped_and_said(machine: Path, caplog) -> None:
    write(machine / "a", cpu__max="250000 100000")
    assert cpu.compute_threads(None) == 3
    assert cpu.compute_threads(2) == 2
    assert not caplog.records
    assert cpu.compute_threads(99) == 3
    assert "--threads is 99, and 3 processors are usable" in caplog.text


def test_blocks() -> None:
    sizes = {"block_bytes": 1000, "fraction": 0.4}
    assert memory.kv_blocks(**sizes, free=100_000, wanted=None, useful=1000) == 40
    assert memory.kv_blocks(**sizes, free=100_000, wanted=None, useful=7) == 7
    bound = {**sizes, "free": 100_000, "useful": 1000, "longest": 3}
    assert memory.kv_blocks(**bound, wanted=None, most=9500) == 9
    assert memory.kv_blocks(**bound, wanted=None, most=2500) == 3, "one sequence always fits"
    assert memory.kv_blocks(**bound, wanted=None, most=10**9) == 40
    assert memory.kv_blocks(**bound, wanted=50, most=2500) == 50, "what was asked for is given"
    assert memory.kv_blocks(**sizes, free=100_000, wanted=90, useful=7) == 90
    with pytest.raises(StartupError, match="num_kv_blocks is 101"):
        memory.kv_blocks(**sizes, free=100_000, wanted=101, useful=7)
    with pytest.raises(StartupError, match="one block takes"):
        memory.kv_blocks(**sizes, free=2000, wanted=None, useful=7)


@pytest.mark.parametrize(
    ("requested", "stored", "expected"),
    [
        ("auto", "float32", torch.float32),
        ("auto", "bfloat16", torch.bfloat16),
        ("auto", "float16", torch.float32),
        ("auto", "Q4_1", torch.float32),
        ("float32", "bfloat16", torch.float32),
        ("bfloat16", "Q4_1", torch.bfloat16),
    ],
)
def test_dtype(requested: str, stored: str, expected: torch.dtype) -> None:
    files = WeightFiles(format="gguf", files=(), dtype=stored)
    assert compute_dtype(requested, files) == expected


def test_unknown_dtype() -> None:
    files = WeightFiles(format="gguf", files=(), dtype="Q4_1")
    with pytest.raises(StartupError, match="'float64'; allowed are auto, float32, bfloat16"):
        compute_dtype("float64", files)


def test_the_limit_of_our_own_address_space(
    machine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`ulimit -v` ended in an OSError of the pool's memory."""
    (tmp_path / "statm").write_text("1000 5 5 5 0 5 0\n")
    monkeypatch.setattr(memory, "STATM", tmp_path / "statm")
    limit = 3 * GIB
    monkeypatch.setattr(memory.resource, "getrlimit", lambda _: (limit, limit))
    assert memory.free_memory() == limit - 1000 * memory.resource.getpagesize()
    monkeypatch.setattr(memory.resource, "getrlimit", lambda _: (GIB // GIB, limit))
    assert memory.free_memory() == 0
