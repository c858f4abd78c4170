"""From tokens and their times to words and theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.text.tokenizer import Tokenizer

UNSPACED = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Codes of languages that are written without blanks between words: each piece of text that is
whole is told as a word."""
_LEADS = frozenset("\"'“¡¿([{-")
"""Belongs to the word after it."""
_TRAILS = frozenset("\"'.。,，!！?？:：”)]}、")
"""Belongs to the word before it."""
_MARKS = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class Word:
    """start, end: seconds."""

    text: str
    start: float
    end: float

    def within(self, low: float, high: float) -> Word:
        """The word, but no earlier and no later than these seconds."""
        high = max(low, high)
        return Word(self.text, min(max(self.start, low), high), min(max(self.end, low), high))


@dataclass(slots=True)
class _Piece:
    """Consecutive tokens, first to last."""

    text: str
    first: int
    last: int

    def take(self, other: _Piece) -> None:
        """What follows it becomes a part of it."""
        self.text += other.text
        self.last = other.last


def words_of(
    token_ids: Sequence[int],
    ends: Sequence[float],
    begin: float,
    tokenizer: Tokenizer,
    *,
    text_end: int,
    language: str,
) -> list[Word]:
    """The words of a segment, in order.

    ends: of each token, seconds; a token begins where the one before it ends.  begin: of the
    first one.  text_end: ids from there on are no text.  language: its code.
    """
    starts = [begin, *ends[:-1]]
    spoken = [at for at, token in enumerate(token_ids) if token < text_end]
    pieces = _whole_pieces([token_ids[at] for at in spoken], tokenizer)
    if language not in UNSPACED:
        pieces = _spaced(pieces)
    words = []
    for piece in _with_marks(pieces):
        text = piece.text.strip()
        if text:
            words.append(Word(text, starts[spoken[piece.first]], ends[spoken[piece.last]]))
    return words


def _whole_pieces(token_ids: list[int], tokenizer: Tokenizer) -> list[_Piece]:
    """Shortest runs of tokens that are whole characters; what is in the text as it was, though no
    token makes sense of it, is one as well."""
    everything = tokenizer.decode(token_ids)
    found: list[_Piece] = []
    first = shown = 0
    for at in range(len(token_ids)):
        text = tokenizer.decode(token_ids[first : at + 1])
        broken = text.find(_UNFINISHED)
        place = shown + broken
        if broken < 0 or place >= len(everything) or everything[place] == _UNFINISHED:
            found.append(_Piece(text, first, at))
            first, shown = at + 1, shown + len(text)
    if first < len(token_ids):
        found.append(_Piece(tokenizer.decode(token_ids[first:]), first, len(token_ids) - 1))
    return found


def _spaced(pieces: list[_Piece]) -> list[_Piece]:
    """Joins what no blank parts; a mark by itself is parted too."""
    found: list[_Piece] = []
    for piece in pieces:
        stripped = piece.text.strip()
        begins = piece.text.startswith(" ") or stripped in _MARKS or not stripped
        if begins or not found:
            found.append(piece)
        else:
            found[-1].take(piece)
    return found


def _with_marks(pieces: list[_Piece]) -> list[_Piece]:
    """Gives marks to the words that they belong to."""
    found: list[_Piece] = []
    leading: _Piece | None = None
    for piece in pieces:
        if leading is not None:
            leading.take(piece)
            found.append(leading)
            leading = None
        elif piece.text.startswith(" ") and (
            not piece.text.strip() or piece.text.strip() in _LEADS
        ):
            leading = piece
        elif found and piece.text in _TRAILS and not found[-1].text.endswith(" "):
            found[-1].take(piece)
        else:
            found.append(piece)
    return found if leading is None else [*found, leading]
