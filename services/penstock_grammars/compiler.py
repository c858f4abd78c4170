"""Our interface to llguidance. What compiling costs is tried in another process first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.process import logs
from penstock.process.memory import resident_bytes
from penstock.protocol.common import Grammar
from penstock_grammars.fork_server import NICENESS
from penstock_grammars.number_digits import DifferentItems, DigitRow, NumberDigits
from penstock_grammars.structural_tag import holds_only_json
from penstock_grammars.trial import Trial, TrialProcesses
from penstock_grammars.unique_arrays import Follower, UniqueArrays
from penstock_worker.grammar.errors import GrammarError, TokenRefused
from penstock_worker.grammar.interface import Matcher

if TYPE_CHECKING:
    from penstock_grammars.library import Library

log = logs.get(__name__)

MAX_FORCED = 64
"""Tokens of a forced text that anybody asks for."""
JSON_KINDS = ("json_schema", "json_object")


class Compiler:
    """A Compile. tokenizer: a tokenizer.json, read when the first grammar comes, or before it where
    that is asked for.  number_digits: as NumberDigits has it, of JSON; 0: any number.

    Each thread that compiles has a process of its own for trials.
    """

    def __init__(
        self,
        tokenizer: Path,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        *,
        number_digits: int = 0,
    ) -> None:
        self._number_digits = number_digits
        self._digits: NumberDigits | None = None
        self._different: DifferentItems | None = None
        self._model = (tokenizer, vocab_size, tuple(eos_token_ids))
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._library: Library | None = None
        self._failed: GrammarError | None = None
        """Why there is no library."""
        self._processes = TrialProcesses(*self._model)
        self._own = threading.local()
        self._trials: list[Trial] = []

    def start_trials(self, niceness: int = NICENESS) -> None:
        """Has the process for trials load the library. Returns at once; to be called from a thread
        that lives as long as the worker does."""
        if self._model[2]:  # The library refuses a model without EOS.
            self._processes.start(niceness)

    @property
    def ready(self) -> bool:
        """Whether a grammar waits for no library."""
        return self._library is not None

    def load(self) -> None:
        """Loads the library unless it is there, here and in the process for trials. Raises nothing:
        what has failed is what compiling says.

        Never to be called by a thread that gives way to others: loading holds Python's lock.
        """
        with self._lock:
            if self._library is None and self._failed is None:
                self.start_trials(0)
                try:
                    self._library = self._loaded()
                except GrammarError as error:
                    self._failed = error
                except BaseException as error:  # A library written in Rust may panic: no Exception.
                    log.error("the grammar library can't be loaded", exception=True)
                    self._failed = GrammarError(f"{type(error).__name__}: {error}")

    def _loaded(self) -> Library:
        # Imported here: it rewrites schemas, which no worker does before it is ready.
        from penstock_grammars.library import Library

        begun, before = time.monotonic(), resident_bytes() or 0
        library = Library(*self._model)
        if self._number_digits:
            self._digits = NumberDigits(library.pieces(), self._number_digits)
        grown = max(0, (resident_bytes() or 0) - before)
        log.info(
            "grammar library loaded",
            seconds=time.monotonic() - begun,
            memory=f"{grown / 2**20:,.1f} MiB",
        )
        return library

    def __call__(self, definition: Grammar) -> _Compiled:
        self.load()
        if self._library is None:
            raise GrammarError(str(self._failed))
        trial = getattr(self._own, "trial", None)
        if trial is None:
            trial = self._own.trial = Trial(self._processes)
            self._trials.append(trial)
        source = trial.source(definition)
        template = self._library.matcher(source)
        whole = definition.kind in JSON_KINDS
        bounded = whole or (definition.kind == "structural_tag" and holds_only_json(definition))
        row = DigitRow(whole=whole)
        unique = self._unique(source) if whole else None
        compiled = _Compiled(
            template,
            self._vocab_size,
            self._library.first_letter,
            self._digits if bounded else None,
            row,
            unique,
        )
        compiled.matcher().allowed()  # One that allows nothing at all is refused here.
        return compiled

    def _unique(self, source: str) -> tuple[DifferentItems, Follower] | None:
        arrays = UniqueArrays.of_source(source)
        if arrays is None:
            return None
        with self._lock:
            if self._different is None and self._library is not None:
                self._different = DifferentItems(list(self._library.pieces()))
            return None if self._different is None else (self._different, arrays.begin())

    def close(self) -> None:
        """Ends the processes. Not to be used any more."""
        for trial in self._trials:
            trial.end()
        self._processes.end()


class _Compiled:
    def __init__(
        self,
        template: Any,
        vocab_size: int,
        first_letter: Callable[[bytes], int],
        digits: NumberDigits | None,
        row: DigitRow,
        unique: tuple[DifferentItems, Follower] | None,
    ) -> None:
        self._unique = unique
        self._digits = digits
        self._row = row
        self._template = template
        self._vocab_size = vocab_size
        self._first_letter = first_letter

    def matcher(self) -> Matcher:
        made = _Matcher(
            self._template.deep_copy(),
            self._vocab_size,
            self._first_letter,
            self._digits,
            copy(self._row),
        )
        if self._unique is None:
            return made
        different, begin = self._unique
        return _DifferingMatcher(made, different, begin.copy())


class _Matcher:
    def __init__(
        self,
        matcher: Any,
        vocab_size: int,
        first_letter: Callable[[bytes], int],
        digits: NumberDigits | None,
        row: DigitRow,
    ) -> None:
        self._matcher = matcher
        self._first_letter = first_letter
        self._digits = digits
        self._row = row
        self._vocab_size = vocab_size
        self._words = np.zeros((vocab_size + 31) // 32, np.uint32)

    def advance(self, tokens: Sequence[int]) -> None:
        # One by one: the lock is given up between them.
        for token in tokens:
            if not self._matcher.consume_token(int(token)):
                raise _refusal(self._matcher)
            if self._digits is not None:
                self._row.push(self._digits.pieces[token])

    def forced(self) -> list[int]:
        tokens = list(self._matcher.compute_ff_tokens()[:MAX_FORCED])
        # Text that spells a special token is taken for the token, which the grammar doesn't admit.
        return tokens[: self._matcher.validate_tokens(tokens)] if tokens else tokens

    def allowed(self) -> np.ndarray:
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        if self._matcher.is_error():
            raise _complaint(self._matcher)
        bits = np.unpackbits(self._words.astype("<u4").view(np.uint8), bitorder="little")
        allowed = bits[: self._vocab_size].astype(bool)
        if not allowed.any():
            raise GrammarError("the grammar allows no next token: it matches nothing")
        if np.count_nonzero(self._words) == 1 and allowed.sum() == 1:
            self._spell_out(allowed, int(allowed.argmax()))
        return allowed if self._digits is None else self._digits.narrowed(allowed, self._row)

    def _spell_out(self, allowed: np.ndarray, only: int) -> None:
        """Puts a letter for the only token, if that is a special one which a text spells."""
        text = self._matcher.compute_ff_bytes()
        if text and not self._matcher.validate_tokens([only]):
            allowed[only] = False
            allowed[self._first_letter(text)] = True


REFUSALS = ("satisfy the grammar", "parser stopped")
"""Words of the library about a token that isn't allowed: it has no code for that. About limits it
says something else, and about its panics."""


def _refusal(matcher: Any) -> GrammarError:
    """The error of a matcher that has not taken a token."""
    complaint = _complaint(matcher)
    refused = any(words in str(complaint) for words in REFUSALS)
    return TokenRefused(str(complaint)) if refused else complaint


def _complaint(matcher: Any) -> GrammarError:
    from penstock_grammars.library import complaint

    return GrammarError(complaint(matcher))


class _DifferingMatcher:
    """A matcher of a grammar whose arrays must have no equal items."""

    def __init__(self, matcher: Matcher, different: DifferentItems, follower: Follower) -> None:
        self._matcher = matcher
        self._different = different
        self._follower = follower

    def advance(self, tokens: Sequence[int]) -> None:
        self._matcher.advance(tokens)
        for token in tokens:
            if not self._follower.push(self._different.pieces[token]):
                raise TokenRefused("two items of an array are the same (uniqueItems)")

    def forced(self) -> list[int]:
        return self._matcher.forced()

    def allowed(self) -> np.ndarray:
        return self._different.narrowed(self._matcher.allowed(), self._follower)
