"""Text from token ids, piece by piece.

For every kind, the pieces joined equal the decode of all ids at once, and no piece ends within a
character.  The tokenizers library's own stream is not used: it raises on some byte sequences and
keeps what is pending at the end.
"""

from __future__ import annotations

from codecs import utf_8_decode
from typing import Protocol

from penstock.text.token_table import SPACE_MARK, TokenBytes
from penstock.text.tokenizer import Tokenizer


class Detokenizer(Protocol):
    """Turns one sequence's ids into text as they come."""

    def push(self, ids: list[int]) -> str:
        """Takes the next ids; returns the text that is now certain."""

    def finish(self) -> str:
        """The rest, once no more ids will come."""


def make_detokenizer(tokenizer: Tokenizer, skip_special_tokens: bool) -> Detokenizer:
    """The detokeniser for this tokenizer's kind of decoder."""
    if tokenizer.table.byte_level is not None:
        return ByteLevelDetokenizer(tokenizer.visible_bytes(skip_special_tokens))
    if tokenizer.table.byte_fallback is not None:
        return ByteFallbackDetokenizer(tokenizer, skip_special_tokens)
    return WindowDetokenizer(tokenizer, skip_special_tokens)


class ByteLevelDetokenizer:
    """Byte-level BPE: ids to bytes by table, bytes to text by an incremental UTF-8 decoder that
    gives one U+FFFD for each ill-formed part (Unicode standard, maximal subparts)."""

    __slots__ = ("_pending", "_table")

    def __init__(self, table: TokenBytes) -> None:
        self._table = table
        self._pending = b""

    def push(self, ids: list[int]) -> str:
        new = self._pending + self._table.joined(ids)
        text, used = utf_8_decode(new, "replace", False)
        self._pending = new[used:]
        return text

    def finish(self) -> str:
        text, _ = utf_8_decode(self._pending, "replace", True)
        self._pending = b""
        return text


class ByteFallbackDetokenizer:
    """SentencePiece with byte tokens. A run of byte tokens is text if the whole run is
    well-formed, else one U+FFFD for each byte, so it is decided only when the run ends."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        rules = tokenizer.table.byte_fallback
        self._pieces = tokenizer.fallback_pieces(skip_special_tokens)
        self._replace = rules is not None and rules.replace_in_bytes
        self._strip = rules is not None and rules.strip_space
        self._run = bytearray()

    def push(self, ids: list[int]) -> str:
        texts: list[str] = []
        size = len(self._pieces)
        for token in ids:
            piece = self._pieces[token] if 0 <= token < size else None
            if isinstance(piece, int):
                self._run.append(piece)
            elif piece is not None:
                if self._run:
                    texts.append(self._end_run())
                texts.append(piece)
        return self._stripped("".join(texts))

    def finish(self) -> str:
        return self._stripped(self._end_run())

    def _end_run(self) -> str:
        run = bytes(self._run)
        self._run.clear()
        try:
            text = run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)
        return text.replace(SPACE_MARK, " ") if self._replace else text

    def _stripped(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


class WindowDetokenizer:
    """Any other decoder, by decoding a window of the latest ids twice: with and without the new
    ones; the difference is new text. Right for decoders that look at their neighbours only."""

    CONTEXT = 8
    """Ids before the new ones that are kept for the decoder to look at."""
    MAX_HELD = 8
    """Ids that may wait for the rest of a character."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._window: list[int] = []
        self._shown = 0

    def push(self, ids: list[int]) -> str:
        return "".join([self._push_one(token) for token in ids])

    def finish(self) -> str:
        return self._text(self._window)[len(self._text(self._window[: self._shown])) :]

    def _push_one(self, token: int) -> str:
        if token in self._skipped or not self._tokenizer.has_token(token):
            return ""
        self._window.append(token)
        text = self._text(self._window)
        if text.endswith("\ufffd") and len(self._window) - self._shown < self.MAX_HELD:
            return ""
        new = text[len(self._text(self._window[: self._shown])) :]
        self._window = self._window[-self.CONTEXT :]
        self._shown = len(self._window)
        return new

    def _text(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)
