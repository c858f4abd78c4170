"""What each token of a vocabulary stands for: its text in the vocabulary, and its bytes."""

from __future__ import annotations

import codecs
import re
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Self, overload

import msgspec
from tokenizers import Tokenizer as Backend

from penstock.errors import UnsupportedModel

SPACE_MARK = "▁"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


HIGHEST_ID = (1 << 22) - 1
"""The highest id that a token may have. Tables have a place for each id up to that of their
highest token, at most some 110 MB; the largest vocabularies have a million."""


class ByteFallbackRules(NamedTuple):
    """How a SentencePiece-like decoder ends: strip one leading space; replace marks in the text
    of byte runs too (where the replacement comes after the bytes are joined)."""

    strip_space: bool
    replace_in_bytes: bool


class TokenTexts(Sequence[str | None]):
    """A vocabulary's own text of each id, None for ids without a token. The tokenizer is asked for
    each: as strings of Python's, 150,000 of them would take 15 MB."""

    def __init__(self, backend: Backend, size: int) -> None:
        self._backend = backend
        self._size = size

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, at: int) -> str | None: ...
    @overload
    def __getitem__(self, at: slice) -> list[str | None]: ...
    def __getitem__(self, at: int | slice) -> str | list[str | None] | None:
        ids = range(self._size)[at]
        return self._text(ids) if isinstance(ids, int) else [self._text(token) for token in ids]

    def of(self, tokens: Iterable[int]) -> dict[int, str]:
        """The texts of tokens, by id; empty for ids without one."""
        name = self._backend.id_to_token
        return {token: name(token) or "" for token in tokens}

    def _text(self, token: int) -> str | None:
        text: str | None = self._backend.id_to_token(token)
        return text


class TokenBytes:
    """The bytes that each id stands for, all in one piece: as objects of Python's, those of 150,000
    tokens would take 11 MB."""

    __slots__ = ("_content", "_ends", "_starts")

    def __init__(self, content: bytes, starts: array[int], ends: array[int]) -> None:
        self._content = content
        self._starts = starts
        self._ends = ends

    @classmethod
    def of(cls, pieces: Iterable[bytes]) -> Self:
        """A table of pieces, which have the ids 0, 1, …"""
        listed = list(pieces)
        return cls.cut(b"".join(listed), map(len, listed))

    @classmethod
    def cut(cls, content: bytes, lengths: Iterable[int]) -> Self:
        """Makes those of the ids 0, 1, …, whose bytes lie one after another."""
        ends = array("I", accumulate(lengths, initial=0))
        return cls(content, ends[:-1], ends[1:])

    def without(self, ids: Iterable[int]) -> Self:
        """Returns the table with no bytes for these ids, as far as there are such."""
        ends = self._ends[:]
        for token in ids:
            if token < len(ends):
                ends[token] = self._starts[token]
        return type(self)(self._content, self._starts, ends)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, token: int) -> bytes:
        return self._content[self._starts[token] : self._ends[token]]

    def joined(self, ids: list[int]) -> bytes:
        """The bytes of ids one after the other; of ids that there aren't, none."""
        content, starts, ends = self._content, self._starts, self._ends
        try:
            if len(ids) == 1:  # Nearly always: a list to join costs as much again.
                (i,) = ids
                return content[starts[i] : ends[i]]
            return b"".join([content[starts[i] : ends[i]] for i in ids])
        except IndexError:
            size = len(ends)
            return b"".join([content[starts[i] : ends[i]] for i in ids if i < size])


def _texts(backend: Backend) -> list[str | None]:
    """The texts of all ids, up to the highest one that has one. Raises UnsupportedModel if that is
    too high."""
    name = backend.id_to_token
    texts: list[str | None] = list(map(name, range(backend.get_vocab_size(with_added_tokens=True))))
    if None in texts:  # There are gaps, so some ids are higher than that.
        highest = max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        if highest > HIGHEST_ID:
            raise UnsupportedModel(
                f"tokenizer.json has the id {highest}; 0 to {HIGHEST_ID} are possible"
            )
        texts = list(map(name, range(highest + 1)))
    return texts


class TokenTable(msgspec.Struct, frozen=True, kw_only=True):
    """texts: by id.  special: ids that are special.
    byte_level: bytes by id, for a byte-level vocabulary.
    byte_fallback: the rules, for a vocabulary with byte tokens.  Neither for any other kind.
    """

    texts: TokenTexts
    special: frozenset[int]
    byte_level: TokenBytes | None
    byte_fallback: ByteFallbackRules | None

    @classmethod
    def build(cls, backend: Backend, special: frozenset[int]) -> TokenTable:
        """Reads the vocabulary and the decoder's description. Takes tenths of a second; keep it.
        Raises UnsupportedModel for ids that are too high."""
        texts = _texts(backend)
        decoder = _decoder(backend)
        is_byte_level = decoder == [{"type": "ByteLevel"}]
        return cls(
            texts=TokenTexts(backend, len(texts)),
            special=special,
            byte_level=_byte_level(texts) if is_byte_level else None,
            byte_fallback=_byte_fallback_rules(decoder),
        )

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; b"" if there is no such token."""
        if not 0 <= token < len(self.texts):
            return b""
        if self.byte_level is not None:
            return self.byte_level[token]
        text = self.texts[token] or ""
        if self.byte_fallback is not None:
            byte = byte_of(text)
            return bytes([byte]) if byte is not None else text.replace(SPACE_MARK, " ").encode()
        return text.encode()

    def visible_bytes(self, skip_special_tokens: bool) -> TokenBytes:
        """Bytes by id, of a byte-level vocabulary; those of special tokens empty if skipped."""
        table = TokenBytes.of(()) if self.byte_level is None else self.byte_level
        return table.without(self.special) if skip_special_tokens else table

    def fallback_pieces(self, skip_special_tokens: bool) -> list[str | int | None]:
        """What each id stands for in a vocabulary with byte tokens: a text, the value of a byte
        token, or None for a token that is skipped."""
        return [
            None
            if text is None or (skip_special_tokens and i in self.special)
            else _fallback_piece(text)
            for i, text in enumerate(self.texts)
        ]


def byte_of(text: str) -> int | None:
    """The value of a byte token such as <0x0A>; None for any other token."""
    match = BYTE_TOKEN.fullmatch(text)
    return int(match[1], 16) if match else None


def _fallback_piece(text: str) -> str | int:
    byte = byte_of(text)
    return text.replace(SPACE_MARK, " ") if byte is None else byte


def _decoder(backend: Backend) -> list[dict[str, Any]]:
    """The decoder's steps, each reduced to what decoding depends on."""
    if backend.decoder is None:
        return []
    described = msgspec.json.decode(backend.decoder.__getstate__())
    steps = described["decoders"] if described["type"] == "Sequence" else [described]
    return [{"type": "ByteLevel"} if step["type"] == "ByteLevel" else step for step in steps]


def _byte_fallback_rules(steps: list[dict[str, Any]]) -> ByteFallbackRules | None:
    """Recognises Replace(mark -> space), ByteFallback, Fuse, and an optional Strip of one leading
    space, in the orders that are in use; anything else is None."""
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    strips = bool(steps) and steps[-1] == strip
    names = [step["type"] for step in (steps[:-1] if strips else steps)]
    if sorted(names) != ["ByteFallback", "Fuse", "Replace"]:
        return None
    replace = steps[names.index("Replace")]
    if replace != {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "}:
        return None
    if names.index("ByteFallback") > names.index("Fuse"):
        return None
    return ByteFallbackRules(strips, names.index("Replace") > names.index("ByteFallback"))


def _byte_level(texts: list[str | None]) -> TokenBytes:
    """A token is written with one letter for each byte. A text with a letter that stands for no
    byte (an added token's may have one) stands for its own UTF-8 bytes."""
    letters = {ord(letter): byte for letter, byte in byte_letters().items()}
    own = [text or "" for text in texts]
    try:  # All together: a tenth of the time that each alone takes.
        content, _ = codecs.charmap_encode("".join(own), "strict", letters)
    except UnicodeEncodeError:
        return TokenBytes.of(_byte_level_bytes(text, letters) for text in own)
    return TokenBytes.cut(content, map(len, own))


def _byte_level_bytes(text: str, letters: dict[int, int]) -> bytes:
    try:
        return codecs.charmap_encode(text, "strict", letters)[0]
    except UnicodeEncodeError:
        return text.encode()


def byte_letters() -> dict[str, int]:
    """GPT-2's letter for each byte: printable Latin-1 bytes are themselves, the others follow
    from U+0100 on (Radford et al., 2019, the published encoder)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    letters.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return letters
