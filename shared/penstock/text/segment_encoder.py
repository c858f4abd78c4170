"""Token ids of a text with special tokens in it, which are parsed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from penstock.text.disarm import prefix_tree
from penstock.text.tokenizer import Tokenizer

WINDOW = 64 << 10
"""Characters of a text that are searched for special tokens at once."""


class _Special(NamedTuple):
    token: int
    lstrip: bool
    rstrip: bool


class SegmentEncoder:
    """Gives the ids that the tokenizer itself would give for the whole text, special tokens parsed:
    it, too, splits at special tokens first and treats each part on its own. The exception is a
    tokenizer that marks the beginning of a text with a space (Metaspace, `first`): only the part
    that the text begins with gets the mark. Safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = {
            token.content: _Special(i, token.lstrip, token.rstrip)
            for i, token in tokenizer.added_tokens.items()
            if token.special and token.content
        }
        self._pattern = re.compile(prefix_tree(self._special)) if self._special else None
        self._longest = max(map(len, self._special), default=0)

    def encode(
        self, text: str, restore: Callable[[str], str], *, most: int | None = None
    ) -> list[int]:
        """Token ids. restore: applied to what lies between special tokens before it is encoded.
        most: as `Tokenizer.encode` has it."""
        parts = self._split(text)
        ids: list[int] = []
        for index in range(0, len(parts), 2):
            plain = parts[index]
            before = self._special[parts[index - 1]] if index else None
            after = self._special[parts[index + 1]] if index + 1 < len(parts) else None
            if before is not None and before.rstrip:
                plain = plain.lstrip()
            if after is not None and after.lstrip:
                plain = plain.rstrip()
            if plain:
                ids += self._tokenizer.encode(
                    restore(plain),
                    parse_special=False,
                    add_special=False,
                    begins=index == 0,
                    most=most,
                )
            if after is not None:
                ids.append(after.token)
        return ids

    def _split(self, text: str) -> list[str]:
        """Plain texts with the special tokens between them.  A long text is searched window by
        window: one search would keep the interpreter's lock for all of it."""
        if self._pattern is None:
            return [text]
        parts = []
        begin = place = 0
        while place < len(text):
            window = place + WINDOW
            found = self._pattern.search(text, place, window + self._longest)
            if found is None or found.start() >= window:
                place = window
                continue
            parts += [text[begin : found.start()], found.group()]
            begin = place = found.end()
        return [*parts, text[begin:]]
