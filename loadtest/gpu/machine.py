"""Which GPU and which libraries are measured."""

from __future__ import annotations

import subprocess

from penstock.machine import version_of

DISTRIBUTIONS = ("torch", "triton", "transformers", "numpy", "pyzmq", "msgspec", "tokenizers")


def asked_of_gpu(fields: str) -> str | None:
    """What nvidia-smi says of the first GPU; None where there is none."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(done.stdout.strip().splitlines()), None)


def device() -> str:
    """Name, driver and memory; that there is none."""
    return asked_of_gpu("name,driver_version,memory.total") or "no GPU"


def versions() -> dict[str, str | None]:
    return {name: version_of(name) for name in DISTRIBUTIONS}
