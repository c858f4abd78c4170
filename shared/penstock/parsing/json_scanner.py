"""JSON (RFC 8259), a character at a time: says where a text stops being the beginning of one."""

from __future__ import annotations

import json
import re
from enum import IntEnum

MAX_DEPTH = 128
MAX_NUMBER = 512
"""Characters of a number."""

PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
"""Characters of a string that mean themselves."""

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_LETTERS = frozenset("+-.eE0123456789")
_HEX = frozenset("0123456789abcdefABCDEF")
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}


class ScanState(IntEnum):
    """What may come next."""

    VALUE = 0
    FIRST_ITEM = 1
    FIRST_KEY = 2
    KEY = 3
    COLON = 4
    AFTER = 5
    """The state after a value: a comma or the end of what holds the value follows."""
    STRING = 6
    ESCAPE = 7
    HEX = 8
    LITERAL = 9
    NUMBER = 10
    DONE = 11
    BROKEN = 12


class JsonScanner:
    """Reads one object or array. depth: of open objects and arrays.

    lenient: strings may hold control characters as they are, as models write line breaks; see
    `escaped`.
    """

    __slots__ = ("_is_key", "_left", "_lenient", "_open", "state")

    def __init__(self, *, lenient: bool = False) -> None:
        self._lenient = lenient
        self.state = ScanState.VALUE
        self._open: list[str] = []
        self._is_key = False
        self._left = ""

    @property
    def depth(self) -> int:
        return len(self._open)

    @property
    def in_string(self) -> bool:
        """Inside of a string, and not in an escape."""
        return self.state is ScanState.STRING

    def step(self, letter: str) -> None:
        """Takes one character; `state` is then BROKEN if it can't stand there."""
        state = self.state
        if state is ScanState.STRING:
            self._string(letter)
        elif state is ScanState.ESCAPE:
            self._escape(letter)
        elif state is ScanState.HEX:
            self._left = self._left[1:]
            self.state = self._if(letter in _HEX, ScanState.HEX if self._left else ScanState.STRING)
        elif state is ScanState.LITERAL:
            expected, self._left = self._left[0], self._left[1:]
            self.state = self._if(
                letter == expected, ScanState.LITERAL if self._left else ScanState.AFTER
            )
        elif state is ScanState.NUMBER:
            self._number(letter)
        elif letter not in " \t\n\r":
            self._structure(state, letter)

    def _structure(self, state: ScanState, letter: str) -> None:
        if state is ScanState.COLON:
            self.state = self._if(letter == ":", ScanState.VALUE)
        elif letter == '"' and state in (ScanState.KEY, ScanState.FIRST_KEY):
            self._is_key, self.state = True, ScanState.STRING
        elif letter == "}" and state is ScanState.FIRST_KEY:
            self._close("{")
        elif letter == "]" and state is ScanState.FIRST_ITEM:
            self._close("[")
        elif state in (ScanState.VALUE, ScanState.FIRST_ITEM):
            self._value(letter)
        elif state is ScanState.AFTER:
            self._after(letter)
        else:
            self.state = ScanState.BROKEN

    def _value(self, letter: str) -> None:
        if letter in "{[":
            self._open.append(letter)
            begun = ScanState.FIRST_KEY if letter == "{" else ScanState.FIRST_ITEM
            self.state = self._if(len(self._open) <= MAX_DEPTH, begun)
        elif not self._open:
            self.state = ScanState.BROKEN
        elif letter == '"':
            self._is_key, self.state = False, ScanState.STRING
        elif letter in _LITERALS:
            self._left, self.state = _LITERALS[letter], ScanState.LITERAL
        elif letter in "-0123456789":
            self._left, self.state = letter, ScanState.NUMBER
        else:
            self.state = ScanState.BROKEN

    def _after(self, letter: str) -> None:
        holder = self._open[-1]
        if letter == ",":
            self.state = ScanState.KEY if holder == "{" else ScanState.VALUE
        elif letter == ("}" if holder == "{" else "]"):
            self._close(holder)
        else:
            self.state = ScanState.BROKEN

    def _close(self, holder: str) -> None:
        if self._open.pop() != holder:
            self.state = ScanState.BROKEN
        else:
            self.state = ScanState.AFTER if self._open else ScanState.DONE

    def _string(self, letter: str) -> None:
        if letter == '"':
            self.state = ScanState.COLON if self._is_key else ScanState.AFTER
        elif letter == "\\":
            self.state = ScanState.ESCAPE
        elif letter < " " and not self._lenient:
            self.state = ScanState.BROKEN

    def _escape(self, letter: str) -> None:
        if letter == "u":
            self._left, self.state = "....", ScanState.HEX
        else:
            self.state = self._if(letter in '"\\/bfnrt', ScanState.STRING)

    def _number(self, letter: str) -> None:
        if letter in _NUMBER_LETTERS:
            self._left += letter
            self.state = self._if(len(self._left) <= MAX_NUMBER, ScanState.NUMBER)
        elif _NUMBER.fullmatch(self._left):
            self.state = ScanState.AFTER
            self.step(letter)
        else:
            self.state = ScanState.BROKEN

    @staticmethod
    def _if(good: bool, then: ScanState) -> ScanState:
        return then if good else ScanState.BROKEN


def escaped(letter: str) -> str:
    """A control character of a string, as JSON has it."""
    return json.dumps(letter)[1:-1]
