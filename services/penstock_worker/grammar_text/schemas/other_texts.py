"""A regular expression for all texts but some."""

from __future__ import annotations

from collections.abc import Iterable

from penstock_worker.grammar_text.schemas.errors import Unservable

MAX_CHARACTERS = 16_384
"""The characters that the expression may have."""
_ANY = "(?s:.)"


def all_but(texts: Iterable[str]) -> str:
    """In the dialect of `pattern`, anchored. Raises Unservable where it would be too long.

    A text is another where it ends within one of them, or goes on as none of them does.
    """
    whole = set(texts)
    following: dict[str, set[str]] = {"": set()}
    for text in whole:
        for end, character in enumerate(text):
            following.setdefault(text[:end], set()).add(character)
            following.setdefault(text[: end + 1], set())
    options, size = [], 0
    for begin, characters in following.items():
        options.append(literal(begin) + _going_on(sorted(characters), begin not in whole))
        size += len(options[-1])
        if size > MAX_CHARACTERS:
            raise Unservable("the excluded values are too long")
    return f"^(?:{'|'.join(options)})$"


def literal(text: str) -> str:
    """A regular expression for this text."""
    return "".join(map(_character, text))


def _going_on(characters: list[str], may_end: bool) -> str:
    """A pattern of what may follow: anything that begins with another character, or, if the text
    may end here, nothing."""
    first = f"[^{''.join(map(_character, characters))}]" if characters else _ANY
    return f"(?:{first}{_ANY}*)?" if may_end else f"{first}{_ANY}*"


def _character(character: str) -> str:
    if character.isascii() and character.isalnum():
        return character
    return f"\\x{{{ord(character):x}}}"
