"""Finds earlier occurrences of a sequence's last tokens, and says what may follow."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol

from penstock.process import logs
from penstock_kernels.cpu.runs import TokenRuns, guess
from penstock_worker.speculation.matches import latest, most_voted
from penstock_worker.speculation.token_index import TokenIndex

log = logs.get(__name__)


class RunIndex(Protocol):
    """An index of the places where runs of `width` tokens occur in `tokens`, which may grow."""

    width: int
    tokens: Sequence[int]
    end: int
    """Runs that end before this token are indexed."""

    def extend(self, end: int) -> None:
        """Indexes all runs that end before token `end`."""


class RunSearch(Protocol):
    """A way to search. All find the same."""

    def index(self, width: int, tokens: Sequence[int], base: Any = None, at: int = 0) -> RunIndex:
        """Returns an index of which nothing is indexed yet but the first `at` tokens, by `base`:
        see TokenIndex."""

    def voted(
        self, indexes: Sequence[Any], tail: Sequence[int], longest: int, most: int
    ) -> list[int]:
        """Returns what `most_voted` does."""

    def latest(self, index: Any, tail: Sequence[int], most: int) -> list[int]:
        """Returns what `matches.latest` does."""


class PlainSearch:
    """The obvious one."""

    def index(
        self, width: int, tokens: Sequence[int], base: TokenIndex | None = None, at: int = 0
    ) -> TokenIndex:
        return TokenIndex(width, tokens, base, at)

    def voted(
        self, indexes: Sequence[TokenIndex], tail: Sequence[int], longest: int, most: int
    ) -> list[int]:
        return most_voted(indexes, tail, longest, most)

    def latest(self, index: TokenIndex, tail: Sequence[int], most: int) -> list[int]:
        return latest(index, tail, most)


class NativeIndex:
    """A TokenIndex of the CPU kernels' library."""

    def __init__(
        self, width: int, tokens: Sequence[int], base: NativeIndex | None = None, at: int = 0
    ) -> None:
        self.width = width
        self.tokens = tokens
        self.end = max(at, width - 1)
        shared: TokenRuns | None = None if base is None else base.runs
        self.runs: TokenRuns = TokenRuns(
            width, shared, 0 if shared is None else min(at, shared.size)
        )

    def extend(self, end: int) -> None:
        # What follows the last run is known, too.
        if end >= self.runs.size or end > self.end:
            self.runs.extend(self.tokens[self.runs.size : end + 1], end)
            self.end = max(self.end, end)


class NativeSearch:
    """A quarter of the other's time, where a text repeats itself."""

    def index(
        self, width: int, tokens: Sequence[int], base: NativeIndex | None = None, at: int = 0
    ) -> NativeIndex:
        return NativeIndex(width, tokens, base, at)

    def voted(
        self, indexes: Sequence[NativeIndex], tail: Sequence[int], longest: int, most: int
    ) -> list[int]:
        return guess([index.runs for index in indexes], tail, longest, most, votes=True)

    def latest(self, index: NativeIndex, tail: Sequence[int], most: int) -> list[int]:
        return guess([index.runs], tail, len(tail), most, votes=False)


@functools.cache
def run_search() -> RunSearch:
    """Returns the fastest one here."""
    try:
        NativeIndex(2, [])
    except ImportError as error:
        log.info("drafts are looked up without the CPU kernels", reason=str(error))
        return PlainSearch()
    return NativeSearch()
