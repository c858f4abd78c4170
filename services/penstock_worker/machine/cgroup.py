"""Limits of the control groups that this process is in, up to the root. Versions 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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
