"""Free text that ends at a mark, or in which marks begin something that isn't free.

A mark may be a token, a text, or either of them; any other special token is as free as text is.
Text up to a mark is one lexeme that ends as soon as it can: else the library's lexer would take the
longest of all lexemes, and run over the mark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping

ANYTHING = r"(.|\n)"
Rule = Callable[[str, str], str]
"""Adds a rule to the grammar, with options, and returns its name."""


class SpecialTokens:
    """ids: of special tokens, by text. In texts, they stand for the tokens."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = ids
        texts = sorted(filter(None, ids), key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, texts))})") if texts else None

    def parts(self, text: str) -> list[str]:
        """The text, cut where such tokens stand."""
        parts = [text] if self._split is None else self._split.split(text)
        return [part for part in parts if part]

    def id(self, part: str) -> int | None:
        return self._ids.get(part)

    def literal(self, text: str) -> str:
        """An expression for exactly this text."""
        written = [
            quoted(part) if (token := self._ids.get(part)) is None else f"<[{token}]>"
            for part in self.parts(text)
        ]
        return " ".join(written) or '""'

    def has(self, text: str) -> bool:
        return any(part in self._ids for part in self.parts(text))

    def others(self, excluded: Collection[int]) -> str | None:
        """An expression for one special token that isn't excluded; None where there is none."""
        ranges: list[list[int]] = []
        for token in sorted(set(self._ids.values()).difference(excluded)):
            if ranges and ranges[-1][1] == token - 1:
                ranges[-1][1] = token
            else:
                ranges.append([token, token])
        return f"<[{','.join(f'{first}-{last}' for first, last in ranges)}]>" if ranges else None


class FreeText:
    """Text that holds none of the marks.

    spelled: those that count as text too, though they are tokens.  beginnings: regular expressions;
    where `head` stands, the text doesn't begin so.
    """

    def __init__(
        self,
        special: SpecialTokens,
        rule: Rule,
        marks: Iterable[str],
        spelled: Collection[str],
        beginnings: Iterable[str] = (),
    ) -> None:
        self.found: dict[str, str] = {}
        """An expression for each mark, and for the text before it if the mark is text."""
        firsts, texts = set(), []
        for mark in marks:
            parts = special.parts(mark)
            at = next((at for at, part in enumerate(parts) if special.id(part) is not None), None)
            ways = []
            if at is not None:
                # What stands before the token is text like any other.
                ways.append(special.literal("".join(parts[at:])))
                firsts.add(special.id(parts[at]))
            if at is None or mark in spelled:
                texts.append(re.escape(mark))
                ways.append(rule(f"TEXT {quoted(mark)}", "[lazy]"))
            self.found[mark] = f"({' | '.join(ways)})"
        tokens = special.others([token for token in firsts if token is not None])
        without = [f"{ANYTHING}*({'|'.join(texts)}){ANYTHING}*"] if texts else []
        begun = [f"({'|'.join(beginnings)}){ANYTHING}*"] if beginnings else []
        pieces = (_plain(without), _plain([*without, *begun]))
        self.piece, self.head = (
            rule(" | ".join(filter(None, (rule(text, "terminal"), tokens))), "") for text in pieces
        )


def lazy(pattern: str) -> str:
    """A terminal of this regular expression, in the library's notation."""
    return f"/{slashed(pattern)}/"


def slashed(pattern: str) -> str:
    """Returns the expression with its slashes escaped, so that it may stand between slashes."""
    return pattern.replace("/", r"\/")


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _plain(excluded: Iterable[str]) -> str:
    return " & ".join([f"/{ANYTHING}+/", *(f"~/{slashed(each)}/" for each in excluded)])
