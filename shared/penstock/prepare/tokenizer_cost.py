"""What a tokenizer's model may take per character of a text, whatever the text.

A Unigram model looks up, from each character on, every piece that the text goes on with, and reads
each from its beginning: pieces that begin one another add up. A WordPiece model looks up all
beginnings of what is left of a word, for each of its tokens.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.errors import UnsupportedModel

MOST_NESTED = 16 << 10
"""Bytes of all pieces that one text may begin with: some 20 microseconds per character. Pieces of
SentencePiece have 16 characters at most, which is some 400 bytes."""
MOST_OF_A_WORD = 512
"""Characters of a word that WordPiece looks at, which takes some 50 microseconds for each. BERT's
has 100."""


def check_nesting(pieces: Collection[str], where: str) -> None:
    """Raises UnsupportedModel for the pieces of a Unigram model that begin one another too often
    and too long."""
    encoded = {piece.encode("utf-8", "replace") for piece in pieces}
    longest = max(map(len, encoded), default=0)
    if longest * (longest + 1) // 2 <= MOST_NESTED:
        return  # As if each beginning of the longest were a piece.
    around: list[bytes] = []
    size = most = 0
    deepest = b""
    for piece in sorted(encoded):
        while around and not piece.startswith(around[-1]):
            size -= len(around.pop())
        around.append(piece)
        size += len(piece)
        if size > most:
            most, deepest, count = size, piece, len(around)
    if most > MOST_NESTED:
        raise UnsupportedModel(
            f"{where}: a piece of {len(deepest)} bytes and the {count - 1} pieces that it begins "
            f"with have {most} bytes, which a text may take for each of its characters; "
            f"{MOST_NESTED} at most"
        )


def check_word(longest: int | None, where: str) -> None:
    """longest: max_input_chars_per_word of a WordPiece model; None: the library's own. Raises
    UnsupportedModel."""
    if longest is not None and longest > MOST_OF_A_WORD:
        raise UnsupportedModel(f"{where} is {longest}; {MOST_OF_A_WORD} at most")
