"""What the worker needs from a grammar library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from penstock.protocol.common import Grammar


class Matcher(Protocol):
    """Follows one sequence. Used by one thread at a time."""

    def advance(self, tokens: Sequence[int]) -> None:
        """The sequence has gained these tokens. Raises TokenRefused if they don't fit, and
        GrammarError where a limit is met."""

    def forced(self) -> list[int]:
        """Ids of the text that the grammar leaves no choice about, written as the tokenizer would
        write it; empty if there is a choice. Quick."""

    def allowed(self) -> np.ndarray:
        """[vocab] bool: ids that may come next, at least one; EOS where the output may end, and
        nothing else where it must.  Raises GrammarError where a limit is met."""


class Compiled(Protocol):
    """A grammar that many sequences may follow."""

    def matcher(self) -> Matcher:
        """One at the beginning of an output. From any thread."""


Compile = Callable[[Grammar], Compiled]
"""Raises GrammarError or GrammarUnavailable. Called from several threads."""


class GrammarCompiler(Protocol):
    """Compiles the grammars of one model, for as long as its worker lives."""

    def __call__(self, definition: Grammar) -> Compiled:
        """See `Compile`."""

    def load(self) -> None:
        """Loads the library unless it is there, and keeps Python's lock meanwhile. Raises nothing:
        what has failed is what compiling says."""

    def start_trials(self) -> None:
        """Starts processes that compiling needs. Returns at once; to be called from a thread that
        lives as long as the worker does."""

    def close(self) -> None:
        """Ends the processes. Not to be used any more."""
