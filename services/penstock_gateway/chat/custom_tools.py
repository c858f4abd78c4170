"""Custom tools, whose input is a text: how the model sees one, as a function with one string, and
how the text is read back from a call of that function."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock.parsing.nodes import TextInput
from penstock_gateway.http.errors import clip

CUSTOM = "custom"
KINDS = ("function", CUSTOM)
"""Types of tools in a chat."""
INPUT = "input"
"""The one parameter of the function that stands for a custom tool."""
SYNTAXES = ("lark", "regex")


class ToolGrammar(msgspec.Struct, frozen=True, kw_only=True):
    """syntax: lark or regex.  definition: the grammar, which the whole input is to match."""

    syntax: str = ""
    definition: str = ""


class InputFormat(msgspec.Struct, frozen=True, kw_only=True):
    """type: text, which is any, or grammar."""

    type: str = "text"
    grammar: ToolGrammar | None = None


class CustomDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that are unknown here are skipped."""

    name: str
    description: str | None = None
    format: InputFormat | None = None


def check_format(format: InputFormat | None, where: str) -> None:
    """Raises InvalidRequest. where: the format's place in the request."""
    if format is None:
        return
    if format.type not in ("text", "grammar"):
        raise InvalidRequest(
            f"{where}.type is {clip(format.type)}; allowed: text, grammar", param=f"{where}.type"
        )
    if format.type == "text":
        return
    check_grammar(format.grammar or ToolGrammar(), f"{where}.grammar")


def check_grammar(grammar: ToolGrammar, where: str) -> None:
    """Raises InvalidRequest. where: the place in the request of its fields."""
    if grammar.syntax not in SYNTAXES:
        raise InvalidRequest(
            f"{where}.syntax is {clip(grammar.syntax)}; allowed: {', '.join(SYNTAXES)}",
            param=f"{where}.syntax",
        )
    if not grammar.definition:
        raise InvalidRequest(f"{where}.definition is empty", param=f"{where}.definition")


def described(description: str | None, grammar: ToolGrammar | None) -> str | None:
    """The description for the model, with the grammar that the tool's input should match."""
    texts = [description or ""]
    if grammar is not None:
        texts.append(f"{INPUT} must match this {grammar.syntax} grammar:\n{grammar.definition}")
    return "\n\n".join(text for text in texts if text) or None


def parameters(grammar: ToolGrammar | None) -> dict[str, Any]:
    """The JSON schema of the function's arguments. A regular expression is a part of it; any other
    grammar stands next to it (`TextInput`)."""
    text: dict[str, Any] = {"type": "string"}
    if grammar is not None and grammar.syntax == "regex":
        text["pattern"] = f"^(?:{grammar.definition})$"
    return {
        "type": "object",
        "properties": {INPUT: text},
        "required": [INPUT],
        "additionalProperties": False,
    }


def text_input(grammar: ToolGrammar | None) -> TextInput | None:
    """What a call is held to where the schema of its arguments doesn't say it."""
    if grammar is None or grammar.syntax != "lark":
        return None
    return TextInput(INPUT, grammar.definition)


def history_arguments(text: str) -> str:
    """The function's arguments, as JSON, of a call in a conversation's history."""
    return msgspec.json.encode({INPUT: text}).decode()


_OPENING = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_OPENING_LENGTH = 64
"""Characters after which it is seen that arguments don't begin so."""
_WHOLE = re.compile(
    r'(?:[^"\\]|\\["\\/bfnrt]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*"
)
"""What can be read of a JSON string: no escape is cut in two."""


class InputText:
    """The text of a custom tool's input, out of the arguments {"input": "…"} as they come. A model
    that writes other arguments has them as its input: their only text, or all of them."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._unread = ""
        self._inside: bool | None = None
        """Whether the string has begun; None: that isn't known."""
        self._returned = 0
        self._ended = False

    def feed(self, text: str) -> str:
        """The next piece of the arguments; returns what it adds to the input."""
        self._pieces.append(text)
        if self._inside is False or self._ended:
            return ""
        self._unread += text
        if self._inside is None:
            opening = _OPENING.match(self._unread)
            if opening is None:
                if len(self._unread) > _OPENING_LENGTH:
                    self._inside, self._unread = False, ""
                return ""
            self._inside, self._unread = True, self._unread[opening.end() :]
        return self._read()

    def rest(self) -> str:
        """Returns what is left of the input at the end of the arguments."""
        if self._ended:
            return ""
        whole = "".join(self._pieces)
        try:
            given: Any = json.loads(whole, strict=False)
        except (ValueError, RecursionError):
            return "" if self._inside else _sound(whole)
        if isinstance(given, dict):
            value = given.get(INPUT, next(iter(given.values()), None) if len(given) == 1 else None)
            given = whole if value is None else value
        return _sound(given if isinstance(given, str) else whole)[self._returned :]

    def _read(self) -> str:
        found = _WHOLE.match(self._unread)
        piece = found[0] if found is not None else ""
        self._unread = self._unread[len(piece) :]
        self._ended = self._unread.startswith('"')
        text = _sound(json.loads(f'"{piece}"', strict=False)) if piece else ""
        self._returned += len(text)
        return text


def _sound(text: str) -> str:
    """The text without halves of surrogate pairs, which have no UTF-8 form."""
    return text.encode("utf-8", "replace").decode()
