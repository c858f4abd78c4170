"""Encodes a text whose special tokens are known to be meant, and the rest known to be plain.

Gives the ids that the tokenizer itself would give for the whole text, special tokens parsed: it,
too, splits at special tokens first and treats each part on its own.  The exception is a tokenizer
that marks the beginning of a text with a space (Metaspace, `first`): only the part that the text
begins with gets the mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from penstock.text.disarm import prefix_tree
from penstock.text.tokenizer import Tokenizer


class _Special(NamedTuple):
    token: int
    lstrip: bool
    rstrip: bool


class SegmentEncoder:
    """Safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = {
            token.content: _Special(i, token.lstrip, token.rstrip)
            for i, token in tokenizer.added_tokens.items()
            if token.special and token.content
        }
        self._pattern = re.compile(f"({prefix_tree(self._special)})") if self._special else None

    def encode(
        self, text: str, restore: Callable[[str], str], *, most: int | None = None
    ) -> list[int]:
        """Token ids. restore: applied to what lies between special tokens before it is encoded.
        most: as `Tokenizer.encode` has it."""
        parts = self._pattern.split(text) if self._pattern else [text]
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
                ids += self._encode_plain(restore(plain), is_first=index == 0, most=most)
            if after is not None:
                ids.append(after.token)
        return ids

    def _encode_plain(self, text: str, *, is_first: bool, most: int | None) -> list[int]:
        tokenizer = self._tokenizer
        if not is_first and self._continuation is not None:
            tokenizer = self._continuation
        return tokenizer.encode(text, parse_special=False, add_special=False, most=most)

    @cached_property
    def _continuation(self) -> Tokenizer | None:
        """A tokenizer for what doesn't begin the text; None if that makes no difference."""
        described: dict[str, Any] = msgspec.json.decode(self._tokenizer.content)
        pre = described.get("pre_tokenizer") or {}
        steps = [step for step in [pre, *pre.get("pretokenizers", [])] if _marks_first(step)]
        if not steps:
            return None
        for step in steps:
            step["prepend_scheme"] = "never"
        content = msgspec.json.encode(described)
        return Tokenizer.from_bytes(content, add_bos=False, bos_token_id=None)


def _marks_first(step: dict[str, Any]) -> bool:
    return step.get("type") == "Metaspace" and step.get("prepend_scheme") == "first"
