"""llguidance behind our interface. What compiling costs is tried in another process first."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from penstock.protocol.common import Grammar
from penstock_worker.grammar.number_digits import DigitRow, NumberDigits
from penstock_worker.grammar_text.compile import Library, complaint
from penstock_worker.grammar_text.errors import GrammarError
from penstock_worker.grammar_text.structural_tag import holds_only_json
from penstock_worker.grammar_text.trial import Trial

MAX_FORCED = 64
"""Tokens of a forced text that anybody asks for."""
JSON_KINDS = ("json_schema", "json_object")


class Compiler:
    """A Compile. tokenizer: a tokenizer.json, read when the first grammar comes.  number_digits: as
    NumberDigits has it, of JSON; 0: any number.

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
        self._model = (tokenizer, vocab_size, tuple(eos_token_ids))
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._library: Library | None = None
        self._own = threading.local()
        self._trials: list[Trial] = []

    def __call__(self, definition: Grammar) -> _Compiled:
        with self._lock:
            if self._library is None:
                self._library = Library(*self._model)
                if self._number_digits:
                    self._digits = NumberDigits(self._library.pieces(), self._number_digits)
        trial = getattr(self._own, "trial", None)
        if trial is None:
            trial = self._own.trial = Trial(*self._model)
            self._trials.append(trial)
        template = self._library.matcher(trial.source(definition))
        whole = definition.kind in JSON_KINDS
        bounded = whole or (definition.kind == "structural_tag" and holds_only_json(definition))
        row = DigitRow(whole=whole)
        compiled = _Compiled(template, self._vocab_size, self._digits if bounded else None, row)
        compiled.matcher().allowed()  # One that allows nothing at all is refused here.
        return compiled

    def close(self) -> None:
        """Ends the processes. Nobody may ask for anything any more."""
        for trial in self._trials:
            trial.end()


class _Compiled:
    def __init__(
        self, template: Any, vocab_size: int, digits: NumberDigits | None, row: DigitRow
    ) -> None:
        self._digits = digits
        self._row = row
        self._template = template
        self._vocab_size = vocab_size

    def matcher(self) -> _Matcher:
        return _Matcher(self._template.deep_copy(), self._vocab_size, self._digits, copy(self._row))


class _Matcher:
    def __init__(
        self, matcher: Any, vocab_size: int, digits: NumberDigits | None, row: DigitRow
    ) -> None:
        self._matcher = matcher
        self._digits = digits
        self._row = row
        self._vocab_size = vocab_size
        self._words = np.zeros((vocab_size + 31) // 32, np.uint32)

    def advance(self, tokens: Sequence[int]) -> None:
        # One by one: the lock is given up between them.
        for token in tokens:
            if not self._matcher.consume_token(int(token)):
                raise GrammarError(complaint(self._matcher))
            if self._digits is not None:
                self._row.push(self._digits.pieces[token])

    def forced(self) -> list[int]:
        return list(self._matcher.compute_ff_tokens()[:MAX_FORCED])

    def allowed(self) -> np.ndarray:
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        if self._matcher.is_error():
            raise GrammarError(complaint(self._matcher))
        bits = np.unpackbits(self._words.astype("<u4").view(np.uint8), bitorder="little")
        allowed = bits[: self._vocab_size].astype(bool)
        if not allowed.any():
            raise GrammarError("the grammar allows no next token: it matches nothing")
        return allowed if self._digits is None else self._digits.narrowed(allowed, self._row)
