"""Which GPUs there are, without loading CUDA, and which of them each worker gets."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.config.settings import WorkerSettings
from penstock.errors import StartupError

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""CUDA's own variable: indices or UUIDs with commas, as `nvidia-smi -L` shows them."""

DRIVER = Path("/proc/driver/nvidia/gpus")
_PATIENCE = 20.0
_ON_CUDA = ("auto", "triton")
"""Kernel backends that a GPU can have."""


def devices_of_workers(
    worker: WorkerSettings, count: int, find: Callable[[], list[str]] | None = None
) -> list[str | None]:
    """What `count` workers of this machine are to see as CUDA_VISIBLE_DEVICES, one GPU each; None:
    what the supervisor sees.

    find: the GPUs that may be used (`visible_gpus`).  Raises StartupError where there are fewer
    GPUs than workers; with --device auto, none at all means the CPU.
    """
    if worker.device == "cpu" or worker.attention_backend not in _ON_CUDA:
        return [None] * count
    found = (find or visible_gpus)()
    if not found and worker.device == "auto":
        return [None] * count
    if not found:
        raise StartupError("no GPU was found: say --device cpu, or install torch for CUDA")
    if len(found) < count:
        raise StartupError(
            f"{count} workers need a GPU each, and there are only {len(found)}: ask for fewer with"
            " --tensor-parallel-size, --pipeline-parallel-size and --data-parallel-size, or say"
            " --device cpu"
        )
    return [*found[:count]]


def visible_gpus(environment: Mapping[str, str] = os.environ, driver: Path = DRIVER) -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    said = environment.get(VISIBLE)
    if said is None:
        return [str(number) for number in range(_count(driver))]
    names = []
    for name in (part.strip() for part in said.split(",")):
        # CUDA, too, takes what stands before the first that is none.
        if not name or name.startswith("-"):
            break
        names.append(name)
    return names


def _count(driver: Path) -> int:
    """nvidia-smi is asked first: in a container, the driver's folder may show the host's GPUs."""
    program = shutil.which("nvidia-smi")
    if program is not None:
        try:
            done = subprocess.run(
                [program, "-L"], capture_output=True, text=True, timeout=_PATIENCE, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return 0
        lines = done.stdout.splitlines() if done.returncode == 0 else []
        return sum(line.startswith("GPU ") for line in lines)
    try:
        return sum(1 for _ in driver.iterdir())
    except OSError:
        return 0
