"""Marks that are tokens of their own: known by their ids, never taken for text that looks alike.

In the text that a parser reads, each such token is one letter that no text can hold: half of a
surrogate pair. The marks also tell how many of an answer's tokens are thoughts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.parsing.interface import CallBegin, Event

if TYPE_CHECKING:
    from penstock.parsing.registry import ReasoningFormat
    from penstock.text.detokenizer import Detokenizer
    from penstock.text.tokenizer import Tokenizer

_FIRST_LETTER = 0xD800


@dataclass(frozen=True)
class TokenMarks:
    """texts: of the tokens that are marks, by id.  hidden: special tokens that are none, and are
    left out.  letters: by the mark's text.  left: what becomes of a letter that stays content: the
    mark's text, or nothing where it is a special token.
    special: whether any is a special token, so that the text must show them."""

    texts: dict[int, str]
    hidden: dict[int, str]
    letters: dict[str, str]
    left: dict[int, str]
    special: bool

    def plain(self, event: Event) -> Event:
        """The event without letters."""
        if isinstance(event, CallBegin) or event.text.isascii():
            return event
        return type(event)(event.text.translate(self.left))


def token_marks(marks: Collection[str], tokenizer: Tokenizer) -> TokenMarks | None:
    """The marks that are one token of the tokenizer's each; None where none is."""
    if not marks:
        return None
    added = {token.content: i for i, token in tokenizer.added_tokens.items() if token.content}
    found = {added[mark]: mark for mark in dict.fromkeys(marks) if mark in added}
    if not found:
        return None
    special = tokenizer.special_ids
    letters = {mark: chr(_FIRST_LETTER + place) for place, mark in enumerate(found.values())}
    return TokenMarks(
        texts=found,
        hidden={i: text for text, i in tokenizer.special_tokens.items() if i not in found},
        letters=letters,
        left={ord(letters[mark]): "" if i in special else mark for i, mark in found.items()},
        special=not special.isdisjoint(found),
    )


class MarkedText:
    """An answer's text with letters for its marks. Where they stand is known from the ids, which
    come with their text, or before it.

    detokenizer: a fresh one, of the kind that the text was made by.
    """

    def __init__(self, marks: TokenMarks, detokenizer: Detokenizer) -> None:
        self._marks = marks
        self._detokenizer = detokenizer
        self._shown = {**marks.hidden, **marks.texts}
        self._places: deque[tuple[int, int, str]] = deque()
        """Start and end of each mark in the answer's text, and its letter."""
        self._placed = 0
        """Characters of the tokens so far."""
        self._rest = ""
        self._read = 0
        """Characters of the text that were dealt with."""

    def push(self, text: str, token_ids: list[int]) -> str:
        """The next piece; a mark that isn't whole yet is held back."""
        self._place(token_ids)
        self._rest += text
        pieces: list[str] = []
        while self._places and self._places[0][0] < self._read + len(self._rest):
            start, end, letter = self._places[0]
            pieces.append(self._take(start - self._read))
            if end > self._read + len(self._rest):
                return "".join(pieces)
            self._take(end - start)
            pieces.append(letter)
            self._places.popleft()
        pieces.append(self._take(len(self._rest)))
        return "".join(pieces)

    def _take(self, length: int) -> str:
        taken, self._rest = self._rest[:length], self._rest[length:]
        self._read += length
        return taken

    def _place(self, token_ids: list[int]) -> None:
        if self._shown.keys().isdisjoint(token_ids):
            self._placed += len(self._detokenizer.push(token_ids))
            return
        for token in token_ids:
            text = self._detokenizer.push([token])
            self._placed += len(text)
            shown = self._shown.get(token)
            if shown and text.endswith(shown):
                letter = self._marks.letters.get(shown, "")
                self._places.append((self._placed - len(shown), self._placed, letter))


class MarkedDetokenizer:
    """Gives the text of tokens with letters for marks, as MarkedText does."""

    def __init__(self, marks: TokenMarks, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        self._letters = {
            **dict.fromkeys(marks.hidden, ""),
            **{i: marks.letters[text] for i, text in marks.texts.items()},
        }
        self._shown = {**marks.hidden, **marks.texts}

    def push(self, ids: list[int]) -> str:
        return "".join([self._of(token) for token in ids])

    def finish(self) -> str:
        return self._detokenizer.finish()

    def _of(self, token: int) -> str:
        text, shown = self._detokenizer.push([token]), self._shown.get(token)
        if shown and text.endswith(shown):
            return text[: len(text) - len(shown)] + self._letters[token]
        return text


def closing_token(thoughts: ReasoningFormat | None, tokenizer: Tokenizer) -> int | None:
    """The token that closes a block of thinking; None where its tag is several."""
    if thoughts is None or thoughts.closing_tag is None:
        return None
    ids = tokenizer.encode(thoughts.closing_tag, add_special=False)
    return ids[0] if len(ids) == 1 else None


class ReasoningTokens:
    """Counts one choice's tokens up to the one that closes its thoughts. Of ids and not of text:
    the count doesn't depend on the pieces in which the answer comes."""

    def __init__(self, closing: int | None) -> None:
        self._closing = closing
        self._open = closing is not None
        self._count = 0
        self.thought = False
        """Whether there were any thoughts: the tag alone closes nothing."""

    def add(self, token_ids: list[int]) -> None:
        """The choice's next tokens."""
        if not self._open:
            return
        if self._closing in token_ids:
            self._open = False
            self._count += token_ids.index(self._closing) + 1
        else:
            self._count += len(token_ids)

    @property
    def total(self) -> int:
        return self._count if self.thought else 0
