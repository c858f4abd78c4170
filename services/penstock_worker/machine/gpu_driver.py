"""Whether this machine may have a GPU, as far as that can be said without torch."""

from __future__ import annotations

import shutil
from pathlib import Path

DRIVERS = (
    "/proc/driver/nvidia",
    "/dev/nvidiactl",
    "/dev/nvmap",
    "/dev/dxg",
    "/dev/kfd",
)
"""One of which is there where a process can use a GPU: NVIDIA's driver, its device (which a
container has, and a host may make late), a Jetson's, that of Windows' subsystem for Linux, and
AMD's."""


def has_driver() -> bool:
    """Returns whether torch is to be asked. A wrong yes costs its import."""
    return any(map(_is_there, DRIVERS)) or shutil.which("nvidia-smi") is not None


def _is_there(path: str) -> bool:
    return Path(path).exists()
