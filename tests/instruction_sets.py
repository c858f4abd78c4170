"""The CPU kernels on each instruction set that this machine has, also those below its best."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock_kernels.cpu import library


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
