"""llguidance behind our interface.

It keeps Python's lock while a token is consumed, so what one token may cost is bounded here, by
limits that depend on grammar and output alone: a sequence that meets one fails wherever it runs.
"""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.protocol.common import Grammar
from penstock_worker.grammar.interface import GrammarError

MAX_ITEMS_IN_ROW = 1000
"""Ways in which the output so far may be read at once. The library's own limit is 2,000, where the
most ambiguous grammars hold the lock for 90 ms a token; 1,000 is 20 ms, and is met by a JSON schema
of some 250 optional properties in one object."""

MAX_LEXER_STATES = 50_000
"""Of a matcher; each takes up to 2 kB."""

WHITESPACE = r"[\x20\x0A\x0D\x09]{0,16}"
"""Between the parts of a JSON text. Bounded: small models go on with spaces for ever."""

MAX_MESSAGE = 500
"""Characters of the library's complaint that a client is shown."""


class Compiler:
    """A Compile. tokenizer: a tokenizer.json, read when the first grammar comes."""

    def __init__(self, tokenizer: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._path = tokenizer
        self._vocab_size = vocab_size
        self._eos = list(eos_token_ids)
        self._lock = threading.Lock()
        self._loaded: tuple[Any, Any, Any] | None = None

    def __call__(self, definition: Grammar) -> _Compiled:
        library, tokenizer, limits = self._load()
        text = _source(library.LLMatcher, definition)
        template = library.LLMatcher(tokenizer, text, log_level=0, limits=limits)
        if template.is_error():
            raise GrammarError(_complaint(template))
        compiled = _Compiled(template, self._vocab_size)
        compiled.matcher().allowed()  # One that allows nothing at all is refused here.
        return compiled

    def _load(self) -> tuple[Any, Any, Any]:
        with self._lock:
            if self._loaded is None:
                if not self._eos:
                    raise GrammarError("structured output needs a model with an EOS token")
                try:
                    library = importlib.import_module("llguidance")
                    tokenizer = library.LLTokenizer(
                        self._path.read_text("utf-8"),
                        n_vocab=self._vocab_size,
                        eos_token=self._eos,
                    )
                except Exception as error:
                    raise GrammarError(
                        f"structured output doesn't work with this model here: {error}"
                    ) from error
                limits = library.LLParserLimits(
                    max_items_in_row=MAX_ITEMS_IN_ROW,
                    max_lexer_states=MAX_LEXER_STATES,
                    verbose_errors=False,
                )
                self._loaded = library, tokenizer, limits
            return self._loaded


class _Compiled:
    def __init__(self, template: Any, vocab_size: int) -> None:
        self._template = template
        self._vocab_size = vocab_size

    def matcher(self) -> _Matcher:
        return _Matcher(self._template.deep_copy(), self._vocab_size)


class _Matcher:
    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._words = np.zeros((vocab_size + 31) // 32, np.uint32)

    def advance(self, tokens: Sequence[int]) -> None:
        # One by one: the lock is given up between them.
        for token in tokens:
            if not self._matcher.consume_token(int(token)):
                raise GrammarError(_complaint(self._matcher))

    def allowed(self) -> np.ndarray:
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        if self._matcher.is_error():
            raise GrammarError(_complaint(self._matcher))
        bits = np.unpackbits(self._words.astype("<u4").view(np.uint8), bitorder="little")
        allowed = bits[: self._vocab_size].astype(bool)
        if not allowed.any():
            raise GrammarError("no token can come next: the grammar matches nothing")
        return allowed


def _source(library: Any, definition: Grammar) -> str:
    """In llguidance's own format. Raises GrammarError."""
    try:
        match definition.kind:
            case "json_schema":
                return _from_schema(library, definition.text)
            case "json_object":
                return _from_schema(library, '{"type": "object"}')
            case "regex":
                return str(library.grammar_from_regex(definition.text))
            case "choice":
                texts = [json.dumps(text, ensure_ascii=False) for text in _choices(definition)]
                return str(library.grammar_from_lark("start: " + " | ".join(texts)))
            case "lark":
                return str(library.grammar_from_lark(definition.text))
    except ValueError as error:
        raise GrammarError(str(error)[:MAX_MESSAGE]) from error
    raise GrammarError(f"no such kind of grammar: {definition.kind}")


def _from_schema(library: Any, schema: str) -> str:
    # Its complaints name the place; the library's name one in a text of its own.
    if json.loads(schema) is True:
        schema = "{}"  # The same, and the library takes options for objects only.
    options = {"whitespace_pattern": WHITESPACE}
    return str(library.grammar_from_json_schema(schema, overrides=options))


def _choices(definition: Grammar) -> list[str]:
    choices = json.loads(definition.text)
    if not isinstance(choices, list) or not choices or not all(type(c) is str for c in choices):
        raise GrammarError("choice must be a list of at least one string")
    return choices


def _complaint(matcher: Any) -> str:
    text = str(matcher.get_error()).split("<state>")[0].split("<non-verbose/>")[0].strip()
    return text[:MAX_MESSAGE] or "the grammar failed for an unknown reason"
