"""Work that is done piece by piece, with pauses between.

What is computed is the same wherever the pauses are: a pause lies between two products, never in
one.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor


T = TypeVar("T")

Pieces = Generator[int, None, T]
"""Yields, after each piece, how many multiplications it was, more or less. Returns the result."""

MILLION = 1_000_000
"""Multiplications in a unit of MediaReady.work."""


def whole(pieces: Pieces[T]) -> T:
    """Does all of it, and returns the result."""
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            result: T = done.value
            return result


class DividedEncoding:
    """An item that is being encoded over several steps."""

    def __init__(self, name: str, pieces: Pieces[Tensor]) -> None:
        self.name = name
        self._pieces = pieces
        self._done = 0
        self._rows: Tensor | None = None

    def advance(self, until: int) -> None:
        """Goes on until so many millions of multiplications are done, since the beginning."""
        while self._rows is None and self._done < until * MILLION:
            try:
                self._done += next(self._pieces)
            except StopIteration as done:
                self._rows = done.value

    def finish(self) -> Tensor:
        """Does the rest. Returns [rows, width], see VisionSpec.row_width."""
        return whole(self._pieces) if self._rows is None else self._rows
