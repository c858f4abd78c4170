"""The CPU kernels on each instruction set that this machine has, also those below its best."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock_kernels.cpu import library

_OF_ARM = ("neoni8mm", "neon")
_ON_ARM = platform.machine() in ("aarch64", "arm64")
_COMMON = "neon" if _ON_ARM else "avx2"
TESTED = sorted(
    (
        name
        for name in library.INSTRUCTION_SETS
        if name == "portable" or (name != "avxvnni" and (name in _OF_ARM) == _ON_ARM)
    ),
    key=lambda name: name != _COMMON,
)
"""Instruction sets of this machine's family. First the one that nearly all machines have: at each
landing of some tests only the first case runs. avxvnni is avx2 but for its integer products, and
tests/kernels/cpu/test_same_bits.py compares the two."""


def usable_here() -> list[str]:
    """The members of INSTRUCTION_SETS that this processor and the loaded library have. Raises
    ImportError where there is no library."""
    before, found = library.instruction_set(), []
    for name in library.INSTRUCTION_SETS:
        try:
            library.use(name)
        except ValueError:
            continue
        found.append(name)
    library.use(before)
    return found


@contextmanager
def instruction_set(name: str) -> Iterator[str]:
    """The kernels use it, in this process; what is made of weights meanwhile is for it alone.
    Skips the test where the processor lacks it."""
    before = library.instruction_set()
    try:
        library.use(name)
    except ValueError as error:
        pytest.skip(str(error))
    try:
        yield name
    finally:
        library.use(before)


def chosen(code: str = "") -> str:
    """The instruction set that a process of its own takes by itself, once it has run `code`."""
    environment = {name: value for name, value in os.environ.items() if name != library.CHOICE}
    ask = "from penstock_kernels.cpu import library; print(library.instruction_set())"
    found = subprocess.run(
        [sys.executable, "-c", f"{code}\n{ask}"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return found.stdout.strip()
