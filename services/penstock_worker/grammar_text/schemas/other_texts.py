"""A regular expression for all texts but some."""

from __future__ import annotations

from collections.abc import Iterable

from penstock_worker.grammar_text.schemas.errors import Unservable

MAX_CHARACTERS = 8192
"""Of the texts together."""
_ANY = "(?s:.)"


def all_but(texts: Iterable[str]) -> str:
    """In the dialect of `pattern`, anchored. Raises Unservable where they are too long."""
    texts = list(texts)
    if sum(map(len, texts)) > MAX_CHARACTERS or any(len(text) > 200 for text in texts):
        raise Unservable("the values that are ruled out are too long")
    return f"^(?:{_all_but(texts)})$"


def literal(text: str) -> str:
    """A regular expression for this text."""
    return "".join(map(_character, text))


def _all_but(texts: list[str]) -> str:
    by_first: dict[str, list[str]] = {}
    for text in texts:
        if text:
            by_first.setdefault(text[0], []).append(text[1:])
    options = [] if "" in texts else [""]
    if by_first:
        options.append(f"[^{''.join(map(_character, by_first))}]{_ANY}*")
    else:
        options.append(f"{_ANY}+")
    options += [f"{_character(first)}(?:{_all_but(rest)})" for first, rest in by_first.items()]
    return "|".join(options)


def _character(character: str) -> str:
    if character.isascii() and character.isalnum():
        return character
    return f"\\x{{{ord(character):x}}}"
