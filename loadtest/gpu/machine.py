"""Which GPU and which libraries are measured."""

from __future__ import annotations

import subprocess

from penstock.machine import version_of

DISTRIBUTIONS = ("torch", "triton", "transformers", "numpy", "pyzmq", "msgspec", "tokenizers")


def device() -> str:
    """Name, driver and memory of the first GPU; that there is none."""
    fields = "--query-gpu=name,driver_version,memory.total"
    command = ["nvidia-smi", fields, "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "no GPU"
    return next(iter(done.stdout.strip().splitlines()), "no GPU")


def versions() -> dict[str, str | None]:
    return {name: version_of(name) for name in DISTRIBUTIONS}
