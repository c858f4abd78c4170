"""Tokens with which an item of a unique array wouldn't be the same as another."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from penstock_worker.grammar_text.errors import GrammarError
from penstock_worker.grammar_text.unique_arrays import Container, Follower

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
