"""Numbers that end: a schema whose numbers have no bounds lets a small model write digits until its
tokens are used up.

The grammar can't say it: the library has no number of so many digits that may have an exponent.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

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
        """What is allowed (bool, one for each token) without the digits that would be too many;
        the same where nothing else is allowed."""
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
        """What comes next of the text."""
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
