"""Arguments as an object without quotes, but for strings, which have marks of their own, as JSON:
{city:<|"|>Paris<|"|>,days:3}."""

from __future__ import annotations

import re

from penstock.parsing.call_object import MAX_HELD
from penstock.parsing.call_text import overlap
from penstock.parsing.interface import CallArguments, CallBegin, Event
from penstock.parsing.values import json_string

MAX_KEY = 512
MAX_DEPTH = 64
_LITERAL = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_KEY_END = re.compile(r"[:{}\[\],]")
_SCALAR_END = re.compile(r"[,\]}]")
_CLOSING = {"{": "}", "[": "]"}


class LooseArguments:
    """Arguments in braces, loosely written: a call once its brace has opened. A string is passed on
    as it comes; a key, or a value without marks, when it is whole.

    begin: the call.  quote: stands before and after each string.
    """

    def __init__(self, begin: CallBegin, quote: str) -> None:
        self._call = begin
        self._quote = quote
        self._rest = ""
        self._searched = 0
        """Characters of the rest that don't end the value which begins it."""
        self._state = self._open
        self._closing: list[str] = []
        self._comma = ""
        self._events: list[Event] = []
        self.left = ""
        self.begun = self.done = self.broken = False

    @property
    def held(self) -> str:
        return "" if self.begun else self._rest

    def end(self) -> None:
        """The text has ended."""

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def push(self, text: str) -> int:
        self._rest += text
        while not (self.done or self.broken) and self._state():
            pass
        if self.done or self.broken:
            self.left, self._rest = self._rest, ""
        return len(text)

    # States; each returns whether there is more to do.
    def _open(self) -> bool:
        if not self._rest.startswith("{"):
            return bool(self._rest) and self._break()
        self.begun = True
        self._events.append(self._call)
        return self._go_in()

    def _member(self) -> bool:
        """State before a key."""
        self._rest = self._rest.lstrip()
        if self._rest.startswith("}"):
            return self._go_out()
        match = _KEY_END.search(self._rest, 0, MAX_KEY)
        if match is None:
            return self._break() if len(self._rest) >= MAX_KEY else False
        key = self._rest[: match.start()].replace(self._quote, "").strip()
        if match[0] != ":" or not key:
            return self._break()
        self._rest = self._rest[match.end() :]
        self._say(f"{self._comma}{json_string(key)}: ")
        self._comma = ""
        self._state = self._value
        return True

    def _value(self) -> bool:
        """State before a value, or before the end of a list."""
        rest = self._rest = self._rest.lstrip()
        if not rest or (self._quote.startswith(rest) and rest != self._quote):
            return False
        if rest[0] == "]" and self._closing[-1] == "]":
            return self._go_out()
        if rest.startswith(self._quote):
            self._rest = rest[len(self._quote) :]
            self._say(f'{self._comma}"')
            self._state = self._string
            return True
        if rest[0] in _CLOSING:
            return self._go_in()
        match = _SCALAR_END.search(rest, self._searched, MAX_HELD)
        if match is None:
            self._searched = len(rest)
            return self._break() if len(rest) >= MAX_HELD else False
        self._searched = 0
        text = rest[: match.start()].strip()
        if not text:
            return self._break()
        self._rest = rest[match.start() :]
        self._say(self._comma + (text if _LITERAL.fullmatch(text) else json_string(text)))
        self._state = self._after
        return True

    def _string(self) -> bool:
        at = self._rest.find(self._quote)
        if at < 0:
            certain = len(self._rest) - overlap(self._rest, self._quote)
            self._say(json_string(self._rest[:certain])[1:-1])
            self._rest = self._rest[certain:]
            return False
        self._say(json_string(self._rest[:at])[1:])
        self._rest = self._rest[at + len(self._quote) :]
        self._state = self._after
        return True

    def _after(self) -> bool:
        """State after a value."""
        rest = self._rest = self._rest.lstrip()
        if not rest:
            return False
        if rest[0] == self._closing[-1]:
            return self._go_out()
        if rest[0] != ",":
            return self._break()
        self._rest = rest[1:]
        self._comma = ", "
        self._state = self._member if self._closing[-1] == "}" else self._value
        return True

    def _go_in(self) -> bool:
        if len(self._closing) >= MAX_DEPTH:
            return self._break()
        letter, self._rest = self._rest[0], self._rest[1:]
        self._say(self._comma + letter)
        self._comma = ""
        self._closing.append(_CLOSING[letter])
        self._state = self._member if letter == "{" else self._value
        return True

    def _go_out(self) -> bool:
        self._rest = self._rest[1:]
        self._say(self._closing.pop())
        self._comma = ""
        self._state = self._after
        self.done = not self._closing
        return not self.done

    def _say(self, text: str) -> None:
        if text:
            self._events.append(CallArguments(text))

    def _break(self) -> bool:
        self.broken = True
        return False
