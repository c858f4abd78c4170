"""The processor: how many threads to compute with, and what it can do."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from penstock.process import logs

log = logs.get(__name__)


def usable_threads() -> int:
    """Cores that this process may run on, within the CPU quota of its cgroups."""
    cores = len(os.sched_getaffinity(0))
    for text in cgroup_files("cpu.max"):
        quota, _, period = text.partition(" ")
        if quota != "max":
            cores = min(cores, -(-int(quota) // int(period)))
    for text in cgroup_files("cpu.cfs_quota_us"):
        # v1 keeps the period in a file of its own; 100 ms unless someone changed it.
        if int(text) > 0:
            cores = min(cores, -(-int(text) // 100_000))
    return max(1, cores)


def compute_threads(wanted: int | None) -> int:
    """Threads to compute with, at most one for each usable core: more would wait for one another.
    wanted: None for as many as that."""
    usable = usable_threads()
    if wanted is not None and wanted > usable:
        log.warning(
            f"--threads is {wanted}, and {usable} processors are usable: computing with {usable}"
            " threads",
            wanted=wanted,
            usable=usable,
        )
        return usable
    return wanted or usable


def instruction_set() -> str:
    """What decides which kernels torch and its BLAS choose: maker, vector width, BF16 units."""
    flags = _cpu_field("flags").split()
    special = [flag for flag in ("avx512_bf16", "amx_bf16", "avx512_vnni") if flag in flags]
    width = next((name for name, needs in _WIDTHS.items() if needs <= set(flags)), "DEFAULT")
    asked = os.environ.get("ATEN_CPU_CAPABILITY", "")  # Of torch: another one than it would choose.
    parts = [_cpu_field("vendor_id"), width, *special, *_of_arm(), asked]
    return " ".join(part for part in parts if part)


def _of_arm() -> list[str]:
    """Returns the width of ARM's vectors in bits, if it varies by processor, and units that others
    lack."""
    features = _cpu_field("Features").split()
    special: list[str] = [name for name in ("bf16", "i8mm") if name in features]
    if "sve" not in features:
        return special
    bits = 8 * (ctypes.CDLL(None).prctl(_PR_SVE_GET_VL) & 0xFFFF)
    return [f"SVE{bits}", *special]


_PR_SVE_GET_VL = 51
_WIDTHS = {
    "AVX512": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "fma", "avx2"},
    "AVX2": {"avx2", "fma"},
}
"""What torch calls the widths of its kernels, widest first, and the processor's flags that each
takes."""


def _cpu_field(name: str) -> str:
    """A field of the first processor; "" where the system doesn't say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


# Limits of the control groups that this process is in, up to the root. Versions 1 and 2.

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")

_CONTROLLERS = {"cpu.cfs_quota_us": "cpu", "memory.limit_in_bytes": "memory"}
"""Version 1 keeps each controller in a hierarchy of its own."""


def cgroup_files(name: str) -> Iterator[str]:
    """The stripped contents of the file `name` in our cgroup and each one above it."""
    for folder in cgroup_folders(_CONTROLLERS.get(name, "")):
        try:
            yield (folder / name).read_text(encoding="ascii").strip()
        except OSError:
            continue


def cgroup_folders(controller: str) -> Iterator[Path]:
    """Our cgroup's folder and those above it. controller: "" for version 2."""
    try:
        lines = MEMBERSHIP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(",") or bool(controller) != bool(controllers):
            continue
        top = ROOT / controller if controller else ROOT
        relative = Path(path.lstrip("/"))
        # In a container the path may be the host's; then only the top exists.
        for folder in (relative, *relative.parents):
            yield top / folder
