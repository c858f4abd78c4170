"""Numbers that end: a schema whose numbers have no bounds lets a small model write digits until its
tokens are used up.

The grammar can't say it: the library has no number of so many digits that may have an exponent.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock_grammars.unique_arrays import Container, Follower
from penstock_worker.grammar.errors import GrammarError

if TYPE_CHECKING:
    pass


_QUOTE, _BACKSLASH = b'"'[0], b"\\"[0]
_DIGITS = frozenset(b"0123456789")


class NumberDigits:
    """For one tokenizer. pieces: the bytes of each token.  most: digits in a row that a number may
    have where it may end: before its point, after it, in its exponent."""

    def __init__(self, pieces: Iterable[bytes], most: int) -> None:
        self.pieces = list(pieces)
        self.most = most
        digits = (len(piece) - len(piece.lstrip(b"0123456789")) for piece in self.pieces)
        self._leading = np.fromiter((min(each, 255) for each in digits), np.uint8)
        self._longest = int(self._leading.max(initial=0))
        self._quotes = [token for token, piece in enumerate(self.pieces) if piece == b'"']

    def narrowed(self, allowed: np.ndarray, row: DigitRow) -> np.ndarray:
        """Returns what is allowed (bool, one for each token) without the digits that would be too
        many; the same if nothing else is allowed."""
        left = self.most - row.length
        if row.in_string or left >= self._longest:
            return allowed
        if not row.whole and allowed[self._quotes].any():
            return allowed
        fewer: np.ndarray = allowed & (self._leading <= max(left, 0))
        return fewer if fewer.any() else allowed


class DigitRow:
    """Where a JSON text is: in a string, or after how many digits in a row.

    whole: all of the output is JSON. Else there may be any quotes before it, and digits are taken
    for a number's where no quote may follow.
    """

    def __init__(self, *, whole: bool = True) -> None:
        self.whole = whole
        self.in_string = self._escaped = False
        self.length = 0

    def push(self, piece: bytes) -> None:
        """Takes the next bytes of the text."""
        for byte in piece:
            if self._escaped:
                self._escaped = False
            elif not self.whole:
                pass
            elif byte == _QUOTE:
                self.in_string = not self.in_string
            elif self.in_string:
                self._escaped = byte == _BACKSLASH
            self.length = self.length + 1 if byte in _DIGITS and not self.in_string else 0


_LAST = b"\xff" * 8
_OPENING = re.compile(rb"\[.*,", re.DOTALL)
"""Pieces that may hold two items of an array that begins in them."""
_IN_TEXT = re.compile(rb'"\s*,\s*(?:[^\s"]|"[^"]*")')
"""Pieces that may end a text and hold more than the beginning of another."""
_BETWEEN = re.compile(rb'"[^"]*"|[0-9][^0-9.eE+-]|^[\s,]*[tfn]')
"""Pieces that may hold an item, or the beginning of one that can only be true, false or null."""
_ENDS = re.compile(rb"[^0-9.eE+-]")
"""Pieces after which a number has ended."""
_NONE_LEFT = "no other item is possible in an array without equal items (uniqueItems)"


class DifferentItems:
    """Keeps the items of arrays different, for one tokenizer. pieces: the bytes of each token."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        self._ordered = sorted(range(len(pieces)), key=pieces.__getitem__)
        self._sorted = [pieces[token] for token in self._ordered]
        self._between, self._in_text, self._opening, self._ends = (
            np.fromiter((pattern.search(piece) is not None for piece in pieces), bool, len(pieces))
            for pattern in (_BETWEEN, _IN_TEXT, _OPENING, _ENDS)
        )

    def narrowed(self, allowed: np.ndarray, follower: Follower) -> np.ndarray:
        """What is allowed (bool, one for each token) without what would make two items the same.
        Raises GrammarError where nothing is left."""
        ruled_out = [
            token for token in self._suspects(allowed, follower) if not self._fits(token, follower)
        ]
        if not ruled_out:
            return allowed
        fewer = allowed.copy()
        fewer[ruled_out] = False
        if not fewer.any():
            raise GrammarError(_NONE_LEFT)
        return fewer

    def _fits(self, token: int, follower: Follower) -> bool:
        return follower.copy().push(self.pieces[token])

    def _suspects(self, allowed: np.ndarray, follower: Follower) -> list[int]:
        array = follower.array
        if array is None:
            return _tokens(allowed & self._opening)
        if array.left is not None:
            return _tokens(allowed)  # They are few.
        if not follower.in_string:
            return _tokens(allowed & (self._ends if follower.written else self._between))
        ends = [token for token in self._ends_of(array, follower.written) if allowed[token]]
        return ends + _tokens(allowed & self._in_text)

    def _ends_of(self, array: Container, written: bytes) -> list[int]:
        """Tokens that would complete an item that has come already."""
        found: list[int] = []
        for kind, *value in array.seen:
            if kind != "string":
                continue
            text = json.dumps(value[0], ensure_ascii=False).encode()
            if text.startswith(written):
                rest = text[len(written) :]
                low = bisect_left(self._sorted, rest)
                high = bisect_left(self._sorted, rest + _LAST)
                found += self._ordered[low:high]
        return found


def _tokens(among: np.ndarray) -> list[int]:
    return [int(token) for token in np.flatnonzero(among)]
