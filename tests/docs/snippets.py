"""The documentation's fenced blocks, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "deploy").rglob("*.md"),
        *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
    )
)
BASE = "http://127.0.0.1:8000"
"""The server that every example talks to."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SEPARATORS = {"|", "||", "&&", ";", "(", ")", "&"}
_REDIRECTIONS = {">", ">>", "<"}
_COMMENT = re.compile(r"(^|\s)#\s.*$", re.MULTILINE)
_ASSIGNMENT = re.compile(r"[A-Z_][A-Z0-9_]*=")


@dataclass(frozen=True)
class Snippet:
    """A fenced block."""

    page: str
    line: int  # of its opening fence, from 1
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def snippets(page: str) -> list[Snippet]:
    """The blocks of a page in order."""
    text = text_of(page)
    return [
        Snippet(page, text[: found.start()].count("\n") + 1, found[1], found[2])
        for found in _FENCE.finditer(text)
    ]


def lines_of(code: str) -> Iterator[str]:
    """The shell's logical lines: without comments; those within quotes, or continued, joined."""
    begun = ""
    for line in code.replace("\\\n", " ").splitlines(keepends=True):
        begun += line
        if _COMMENT.sub("", begun).count("'") % 2 == 0:
            if begun.strip() and not begun.lstrip().startswith("#"):
                yield begun.rstrip("\n")
            begun = ""


def commands_of(line: str) -> Iterator[tuple[dict[str, str], list[str]]]:
    """(variables, words) of each command of a line; redirections are left out."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    variables: dict[str, str] = {}
    words: list[str] = []
    tokens = iter(lexer)
    for token in tokens:
        if token in _SEPARATORS:
            if words:
                yield variables, words
            variables, words = {}, []
        elif token in _REDIRECTIONS:
            next(tokens, None)
        elif not words and _ASSIGNMENT.match(token):
            name, _, value = token.partition("=")
            variables[name] = value
        else:
            words.append(token)
    if words:
        yield variables, words
