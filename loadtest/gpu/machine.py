"""Which GPU and which libraries are measured."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess

from loadtest.report.facts import without_folders
from penstock.process.machine import version_of

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
    """compiler: of C, which Triton needs for launchers that no cache holds. triton's key: what its
    cache goes by; a cache of another key is of no use.  CPU kernels: without them, KV blocks'
    checksums are numpy's."""
    found = {name: version_of(name) for name in DISTRIBUTIONS}
    own = {"triton's key": triton_key(), "C compiler": compiler(), "CPU kernels": cpu_kernels()}
    return {**found, **own}


def cpu_kernels() -> str:
    """Their instruction set, or why there are none."""
    from penstock_kernels.cpu import library

    try:
        return library.instruction_set()
    except ImportError as error:
        return f"none ({without_folders(str(error))})"


def compiler() -> str:
    """The path of the C compiler that Triton would find, or "none"."""
    names = [os.environ.get("CC", ""), "gcc", "clang"]
    return next(filter(None, map(shutil.which, filter(None, names))), "none")


def triton_key() -> str | None:
    """The first characters of its hash, None where there is no Triton."""
    try:
        from triton.runtime.cache import triton_key as key
    except ImportError:
        return None
    return hashlib.sha256(key().encode()).hexdigest()[:16]
