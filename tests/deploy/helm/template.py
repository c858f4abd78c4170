"""Go's text/template, as much of it as the chart uses: text/template and Helm are the reference.

Stricter than they are, so that a typo is an error: what isn't there can't be read, nothing prints
as <no value>, and a large number must go through `int`, as Helm prints 1e+06.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_ACTION = re.compile(r"\{\{(-(?=\s))?(.*?)((?<=\s)-)?\}\}", re.S)
_COMMENT = re.compile(r"\s*/\*.*?\*/\s*", re.S)
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:\\.|[^"\\])*")|(?P<raw>`[^`]*`)|(?P<number>-?\d+(?![\w.]))
    |(?P<path>\$?[\w]*(?:\.\w+)+|\$\w*|\.)|(?P<word>\w+)|(?P<mark>:=|[|(),]))""",
    re.X,
)
_BLOCKS = ("if", "with", "range", "define")


class TemplateError(Exception):
    """What is wrong with a template, or what `fail` and `required` say."""


@dataclass
class Block:
    """keyword: text, print, set, if, with, range or define. branches: (pipeline, nodes)."""

    keyword: str
    text: str = ""
    branches: list[tuple[list[Any], list[Block]]] = field(default_factory=list)


def split(source: str) -> Iterator[tuple[str, str]]:
    """("text", …) and ("action", …) in turn, blanks trimmed as the dashes say."""
    at, trim = 0, False
    for match in _ACTION.finditer(source):
        text = source[at : match.start()]
        text = text.lstrip() if trim else text
        yield "text", text.rstrip() if match[1] else text
        if not _COMMENT.fullmatch(match[2]):
            yield "action", match[2].strip()
        at, trim = match.end(), bool(match[3])
    yield "text", source[at:].lstrip() if trim else source[at:]


def tokens(action: str) -> list[tuple[str, str]]:
    """(kind, text) of an action's parts. Raises TemplateError."""
    found, at = [], 0
    while at < len(action):
        match = _TOKEN.match(action, at)
        if match is None or match.lastgroup is None:
            raise TemplateError(f"can't be read: {action[at:]!r}")
        found.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
        at += len(action[at:]) - len(action[at:].lstrip())
    return found


def parse(source: str) -> list[Block]:
    """Raises TemplateError."""
    pieces = list(split(source))
    nodes, rest = _parse_nodes(pieces, 0)
    if rest != len(pieces):
        raise TemplateError(f"without a beginning: {pieces[rest][1]}")
    return nodes


def _parse_nodes(pieces: list[tuple[str, str]], at: int) -> tuple[list[Block], int]:
    nodes: list[Block] = []
    while at < len(pieces):
        kind, text = pieces[at]
        if kind == "text":
            nodes.append(Block("text", text))
            at += 1
            continue
        keyword = text.split(None, 1)[0]
        if keyword in ("end", "else"):
            break
        if keyword in _BLOCKS:
            block, at = _parse_block(pieces, at, keyword)
            nodes.append(block)
            continue
        parts = tokens(text)
        setting = len(parts) > 1 and parts[1] == ("mark", ":=")
        name = parts[0][1] if setting else ""
        nodes.append(
            Block("set" if setting else "print", name, [(parts[2:] if setting else parts, [])])
        )
        at += 1
    return nodes, at


def _parse_block(pieces: list[tuple[str, str]], at: int, keyword: str) -> tuple[Block, int]:
    block = Block(keyword)
    condition = tokens(pieces[at][1].removeprefix(keyword))
    while True:
        nodes, at = _parse_nodes(pieces, at + 1)
        block.branches.append((condition, nodes))
        if at >= len(pieces):
            raise TemplateError(f"{keyword} without an end")
        text = pieces[at][1]
        if text == "end":
            return block, at + 1
        condition = tokens(text.removeprefix("else").strip().removeprefix("if"))


class Renderer:
    """All templates of a chart. functions: by name; `include` is the renderer's own."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self._functions = {**functions, "include": self.include}
        self._defined: dict[str, list[Block]] = {}

    def define(self, source: str) -> list[Block]:
        """Takes the definitions of a file; returns what is left."""
        left = []
        for node in parse(source):
            if node.keyword == "define":
                ((_, name),) = node.branches[0][0]
                self._defined[name.strip('"')] = node.branches[0][1]
            else:
                left.append(node)
        return left

    def include(self, name: str, dot: Any) -> str:
        """Helm's `include`: a named template, as text."""
        if name not in self._defined:
            raise TemplateError(f"nothing is defined as {name}")
        return self.render(self._defined[name], dot)

    def render(self, nodes: list[Block], dot: Any) -> str:
        """The text that a file, or a definition, makes of `dot`."""
        return self._nodes(nodes, dot, {"$": dot})

    def _nodes(self, nodes: list[Block], dot: Any, outer: dict[str, Any]) -> str:
        variables, out = dict(outer), []
        for node in nodes:
            if node.keyword == "text":
                out.append(node.text)
            elif node.keyword == "set":
                variables[node.text] = self._pipeline(node.branches[0][0], dot, variables)
            elif node.keyword == "print":
                out.append(shown(self._pipeline(node.branches[0][0], dot, variables)))
            else:
                out.append(self._block(node, dot, variables))
        return "".join(out)

    def _block(self, node: Block, dot: Any, variables: dict[str, Any]) -> str:
        for condition, nodes in node.branches:
            if not condition:  # else
                return self._nodes(nodes, dot, variables)
            value = self._pipeline(condition, dot, variables)
            if node.keyword == "range":
                return "".join(self._nodes(nodes, each, variables) for each in value)
            if value:
                return self._nodes(nodes, value if node.keyword == "with" else dot, variables)
        return ""

    def _pipeline(self, parts: list[Any], dot: Any, variables: dict[str, Any]) -> Any:
        value, piped = None, False
        for command in _at_top(parts, "|"):
            operands = self._operands(command, dot, variables)
            value = _call(operands + ([value] if piped else []))
            piped = True
        return value

    def _operands(self, parts: list[Any], dot: Any, variables: dict[str, Any]) -> list[Any]:
        found: list[Any] = []
        at = 0
        while at < len(parts):
            kind, text = parts[at]
            at += 1
            if (kind, text) == ("mark", "("):
                begin, depth = at, 1
                while depth:
                    depth += {("mark", "("): 1, ("mark", ")"): -1}.get(parts[at], 0)
                    at += 1
                found.append(self._pipeline(parts[begin : at - 1], dot, variables))
            else:
                found.append(self._operand(kind, text, dot, variables))
        return found

    def _operand(self, kind: str, text: str, dot: Any, variables: dict[str, Any]) -> Any:
        if kind == "text":
            return text[1:-1].encode().decode("unicode_escape")
        if kind == "raw":
            return text[1:-1]
        if kind == "number":
            return int(text)
        if kind == "path":
            first, *names = text.split(".")
            if first and first not in variables:
                raise TemplateError(f"there is no variable {first}")
            value = variables[first] if first else dot
            for name in filter(None, names):
                if not isinstance(value, Mapping) or name not in value:
                    raise TemplateError(f"{text}: there is no {name}")
                value = value[name]
            return value
        if text in ("true", "false"):
            return text == "true"
        if text not in self._functions:
            raise TemplateError(f"there is no function {text}")
        return self._functions[text]


def _at_top(parts: list[Any], mark: str) -> Iterator[list[Any]]:
    """The pieces between marks that stand in no parentheses."""
    piece: list[Any] = []
    depth = 0
    for part in parts:
        depth += {("mark", "("): 1, ("mark", ")"): -1}.get(part, 0)
        if part == ("mark", mark) and not depth:
            yield piece
            piece = []
        else:
            piece.append(part)
    yield piece


def _call(operands: list[Any]) -> Any:
    first, *rest = operands
    if callable(first):
        return first(*rest)
    if rest:
        raise TemplateError(f"{first!r} is no function")
    return first


def shown(value: Any) -> str:
    """A value as text. Raises TemplateError for what Helm shows in ways that nobody wants."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int) and abs(value) < 1_000_000:
        return str(value)
    raise TemplateError(f"{value!r} would not print as it is")
