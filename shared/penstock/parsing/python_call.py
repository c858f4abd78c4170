"""One call, written as in Python: get_weather(city="Paris", days=2)."""

from __future__ import annotations

import ast
import re

from penstock.parsing.call_object import MAX_HELD
from penstock.parsing.interface import CallArguments, CallBegin, Event
from penstock.parsing.values import as_json, json_string, python_json, python_value

MAX_DEPTH = 64
_NAME = re.compile(r"[A-Za-z_][\w.\-]{0,255}")
_NAME_LETTER = re.compile(r"[\w.\-]")
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_RAW = {"\n": "\\n", "\r": "\\r", "\x00": "\\x00"}
"""Letters that a string in Python may not hold as they are."""


class PythonCall:
    """A call in Python's form. Its arguments are passed on at its end: only then are they known to
    be literals.

    known: names that calls may have; None: any.
    """

    def __init__(self, known: frozenset[str] | None) -> None:
        self._known = known
        self._text: list[str] = []
        self._source: list[str] = []
        """Pieces of the arguments, as Python reads them."""
        self._open: list[str] = []
        self._name: str | None = None
        self._quote = ""
        self._escaped = False
        self._events: list[Event] = []
        self.left = ""
        self.begun = self.done = self.broken = False

    @property
    def held(self) -> str:
        return "" if self.begun else "".join(self._text)

    def end(self) -> None:
        """The text has ended: a call without its closing bracket is none."""

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def push(self, text: str) -> int:
        for at, letter in enumerate(text):
            full = len(self._text) >= MAX_HELD
            if full or not (self._named(letter) if self._name is None else self._step(letter)):
                self.broken = True
                return at
            self._text.append(letter)
            if self._name is not None and not self._open:
                self._finish()
                return at + 1
        return len(text)

    def _named(self, letter: str) -> bool:
        """Reads a letter of the name, or the bracket after it."""
        if letter != "(":
            return _NAME_LETTER.match(letter) is not None and len(self._text) < 256
        name = "".join(self._text)
        self._open.append(")")
        self._name = name
        known = self._known is None or name in self._known
        return known and _NAME.fullmatch(name) is not None

    def _step(self, letter: str) -> bool:
        if self._quote:
            raw = letter in _RAW and not self._escaped
            self._source.append(_RAW[letter] if raw else letter)
            if self._escaped:
                self._escaped = False
            elif letter == "\\":
                self._escaped = True
            elif letter == self._quote:
                self._quote = ""
            return True
        self._source.append(letter)
        if letter in "'\"":
            self._quote = letter
        elif letter in _PAIRS:
            self._open.append(_PAIRS[letter])
        elif letter in ")]}":
            return self._open.pop() == letter
        return len(self._open) <= MAX_DEPTH

    def _finish(self) -> None:
        arguments = self._read()
        if arguments is None:
            self.broken = True
            return
        self.begun = self.done = True
        self._events += [CallBegin(self._name or ""), CallArguments(arguments)]

    def _read(self) -> str | None:
        """The arguments as a JSON object; None where they aren't literals with names."""
        source = "f(" + "".join(self._source)
        try:
            call = ast.parse(source, mode="eval").body
            if not isinstance(call, ast.Call) or call.args:
                return None
            parts = []
            for keyword in call.keywords:
                if keyword.arg is None:
                    return None
                value = python_value(keyword.value)
                text = _json_in(source, keyword.value, value) or python_json(value)
                parts.append(f"{json_string(keyword.arg)}: {text}")
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return None
        return "{" + ", ".join(parts) + "}"


def _json_in(source: str, node: ast.expr, value: object) -> str | None:
    """A value's own text, if that is JSON of the same value: so a template can show it to the model
    again. None in a call of several lines, too, whose places aren't counted here."""
    if node.end_lineno != 1 or node.end_col_offset is None:
        return None
    text = source.encode()[node.col_offset : node.end_col_offset].decode()
    found = as_json(text)
    return text if found is not None and found == (value, text) else None
