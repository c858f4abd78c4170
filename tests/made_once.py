"""What takes long to make, and several processes of pytest -n read: made by the first that asks."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of that name in the run's cache, filled by `make` where it isn't there."""
    kept = Path(os.environ["XDG_CACHE_HOME"]) / name
    with open(f"{kept}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            begun = Path(f"{kept}.part")
            make(begun)
            begun.rename(kept)
    return kept
