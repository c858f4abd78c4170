"""The machine and the versions that a result was measured with. Standard library only."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any


def describe_machine() -> dict[str, Any]:
    """CPU model, cores that this process may use, memory (bytes) within the cgroup's limits."""
    return {
        "cpu": _cpu_model(),
        "cores": usable_cores(),
        "memory_bytes": usable_memory(),
        "python": platform.python_version(),
    }


def usable_cores() -> float:
    """Cores of the affinity mask, less where the cgroup's quota gives less."""
    cores = float(len(os.sched_getaffinity(0)))
    quota = _cgroup("cpu.max").split()
    if len(quota) == 2 and quota[0] != "max":
        cores = min(cores, int(quota[0]) / int(quota[1]))
    return cores


def usable_memory() -> int:
    """Bytes: the machine's, less where the cgroup allows less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _cgroup("memory.max")
    return min(total, int(limit)) if limit.isdigit() else total


def version_of(distribution: str) -> str | None:
    """An installed distribution's version, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _cgroup(name: str) -> str:
    """A cgroup v2 control file of this process's group or the root; empty if there is none."""
    try:
        own = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2].lstrip("/")
    except OSError:
        own = ""
    for folder in (Path("/sys/fs/cgroup") / own, Path("/sys/fs/cgroup")):
        try:
            return (folder / name).read_text().strip()
        except OSError:
            continue
    return ""
