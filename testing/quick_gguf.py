"""The `gguf` package's reader, for the default model's file, in a seventh of the time.

It reads a vocabulary string by string, and slices of a `numpy.memmap` cost ten times those of an
array. Whoever compares with it, or with transformers, which reads by it, reads the same bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gguf
import numpy as np
import pytest


class QuickReader(gguf.GGUFReader):
    """Looks into the mapped file as into an array."""

    @property
    def data(self) -> Any:
        return self._array

    @data.setter
    def data(self, mapped: np.memmap) -> None:
        self._array = np.asarray(mapped)


@contextmanager
def read_once() -> Iterator[None]:
    """Meanwhile, whatever reads by the package reads a file once, and quickly. transformers reads
    it for the configuration, for the tokenizer and for the weights, and makes the table of all
    names anew for each of a model's modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf, "GGUFReader", functools.cache(QuickReader))
        patch.setattr(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map))
        yield
