"""Keeps the special tokens in a client's text apart from those that a chat template writes.

Before the template runs, special tokens in the client's strings are broken: one of their
characters is exchanged for a stand-in, a private-use character that occurs nowhere in the input.
Every special token that is whole in the rendered text is then the template's own.  Once the text
is split at those, the stand-ins are exchanged back, and what lies between is encoded as plain
text.

Broken is what could be, or become, a special token:
- a whole special token, anywhere in a string: its first character;
- the beginning of one at the end of a string, since the next string may complete it: its first
  character; and the end of one at the beginning of a string: its last.  Whitespace at a string's
  ends doesn't count, as templates trim it.

Strings without any of these, nearly all, are left as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock.text.as_written import WrittenValue, changed, plain, text_of

PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE))
MAX_DEPTH = 64


class Disarmed(msgspec.Struct, frozen=True):
    """values: what the template gets.  stand_ins: code of a stand-in -> the character it stands
    for; empty if nothing had to be broken."""

    values: dict[str, Any]
    stand_ins: dict[int, str]

    def restore(self, text: str) -> str:
        """The text with the client's own characters."""
        for code, letter in self.stand_ins.items():
            text = text.replace(chr(code), letter)
        return text


class Breaker:
    """Finds in a string the characters to exchange.

    Searches by regular expressions made of prefix trees: a string costs time linear in its length,
    with a small factor, whatever it holds and however many special tokens there are.
    """

    def __init__(self, special: frozenset[str]) -> None:
        by_first: dict[str, list[str]] = {}
        for text in sorted(special):
            by_first.setdefault(text[0], []).append(text[1:])
        # Only the first character is consumed, so that tokens that overlap are all found.
        whole = (f"{re.escape(c)}(?={prefix_tree(rests)})" for c, rests in by_first.items())
        self._whole = re.compile("|".join(whole)) if special else None
        self._heads = frozenset(text[:n] for text in special for n in range(1, len(text)))
        self._tails = frozenset(text[-n:] for text in special for n in range(1, len(text)))
        self._longest = max(map(len, special), default=0)
        self.edges = sorted({text[0] for text in special} | {text[-1] for text in special})
        letters = "".join(map(re.escape, self.edges))
        self._edge = re.compile(f"[{letters}]") if letters else None

    def breaks(self, text: str) -> bool:
        """Whether anything in the text must be exchanged."""
        if self._whole is None or self._edge is None or self._edge.search(text) is None:
            return False
        return bool(self._at_ends(text)) or self._whole.search(text) is not None

    def exchange(self, text: str, stand_ins: dict[str, str]) -> str:
        """The text with stand-ins where they are needed."""
        if self._whole is None or self._edge is None or self._edge.search(text) is None:
            return text
        ends = self._at_ends(text)
        text = self._whole.sub(lambda found: stand_ins[found[0]], text)
        for position in ends:
            letter = text[position]
            if letter in stand_ins:
                text = f"{text[:position]}{stand_ins[letter]}{text[position + 1 :]}"
        return text

    def _at_ends(self, text: str) -> set[int]:
        """Positions of what could become a special token together with another string."""
        found = set()
        for begin, end in {(0, len(text)), _trimmed(text)}:
            for n in range(1, min(self._longest, end - begin + 1)):
                if text[end - n : end] in self._heads:
                    found.add(end - n)
                if text[begin : begin + n] in self._tails:
                    found.add(begin + n - 1)
        return found


def prefix_tree(texts: Iterable[str]) -> str:
    """A regular expression that matches the longest of the texts that there is; no alternative of
    it begins like another, so that none is tried in vain."""
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for letter in text:
            node = node.setdefault(letter, {})
        node[""] = {}
    return _expression(tree)


def _expression(tree: dict[str, Any]) -> str:
    pieces: list[str] = []
    while len(tree) == 1 and "" not in tree:
        ((letter, tree),) = tree.items()
        pieces.append(re.escape(letter))
    branches = [re.escape(letter) + _expression(below) for letter, below in tree.items() if letter]
    if branches:
        pieces.append(f"(?:{'|'.join(branches)})" + ("?" if "" in tree else ""))
    return "".join(pieces)


@lru_cache(maxsize=8)
def breaker_for(special: frozenset[str]) -> Breaker:
    """The breaker of a set of special tokens; made once."""
    return Breaker(special)


def disarm(values: dict[str, Any], special: frozenset[str], template: str) -> Disarmed:
    """Break the special tokens in all strings of the values, however deep, keys included.

    template: the template's source, which stand-ins must not occur in either.
    Raises InvalidRequest if the values are nested too deep, or use up all private-use characters.
    """
    breaker = breaker_for(special)
    strings = [text for name, value in values.items() for text in _strings_of(name, value)]
    if not any(map(breaker.breaks, strings)):
        return Disarmed(values, {})
    taken = set(template).union(*special, *strings)
    free = (code for code in chain(*PRIVATE_USE) if chr(code) not in taken)
    codes = dict(zip(breaker.edges, free, strict=False))
    if len(codes) < len(breaker.edges):
        raise InvalidRequest("the messages hold every private-use character of Unicode")
    stand_ins = {letter: chr(code) for letter, code in codes.items()}
    broken = {key: _rebuilt(value, breaker, stand_ins) for key, value in values.items()}
    return Disarmed(broken, {code: letter for letter, code in codes.items()})


def too_deep(where: str) -> InvalidRequest:
    """What is said of a variable with values in values in values."""
    return InvalidRequest(f"{where} is nested deeper than {MAX_DEPTH} levels", param=where)


def _trimmed(text: str) -> tuple[int, int]:
    """Returns the indices between which the text stands without the whitespace around it."""
    stripped = text.strip()
    begin = text.find(stripped)
    return begin, begin + len(stripped)


def _strings_of(name: str, value: Any) -> Iterator[str]:
    """Strings of a template's variable, its name first; an error names the part that is nested too
    deep."""
    yield name
    if not isinstance(value, (list, tuple)):
        yield from _strings(value, 1, name)
        return
    for place, item in enumerate(value):
        yield from _strings(item, 2, f"{name}[{place}]")


def _strings(value: Any, depth: int, where: str) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise too_deep(where)
    if isinstance(value, str):
        yield value
    elif isinstance(value, WrittenValue):
        yield text_of(value) or ""
        yield from _strings(plain(value), depth, where)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key, depth + 1, where)
            yield from _strings(item, depth + 1, where)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item, depth + 1, where)


def _rebuilt(value: Any, breaker: Breaker, stand_ins: dict[str, str]) -> Any:
    """The value with the strings exchanged. The depth has been checked."""
    if isinstance(value, str):
        return breaker.exchange(value, stand_ins)
    if isinstance(value, WrittenValue):
        text = breaker.exchange(text_of(value) or "", stand_ins)
        return changed(value, lambda each: _rebuilt(each, breaker, stand_ins), text)
    if isinstance(value, Mapping):
        return {
            _rebuilt(key, breaker, stand_ins): _rebuilt(item, breaker, stand_ins)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_rebuilt(item, breaker, stand_ins) for item in value]
    return value
