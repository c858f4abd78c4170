"""Arguments of calls as the model wrote them, for chat templates that show the model its calls.

A template writes an object as `tojson` does. If that is not what the model wrote (other spaces,
100000.0 for 1e5, letters for escapes), the conversation no longer begins as the model's cache has
it, and the model sees another call than its own.  So the objects that a template gets know the JSON
that they were read from: `tojson` writes that, and numbers print as they were written.

JSON without any space is an exception.  Clients in JavaScript write it when they write a call anew,
and models hardly do; it gets the spaces that `tojson` would write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

Place = tuple[int, int]
"""Where a call stands: its message, and its number there."""

_STRING = re.compile(r'("[^"\\]*+(?:\\.[^"\\]*+)*+")', re.DOTALL)
_SPACE = re.compile(r"[ \t\n\r]*+")


class SentArguments(dict[str, Any]):
    """A call's arguments, and the JSON text that a client sent for them."""

    def __init__(self, values: Mapping[str, Any], text: str) -> None:
        super().__init__(values)
        self.text = text


@dataclass(frozen=True)
class PackedMessages:
    """Messages in msgpack, as `with_texts` gives them. places: where the texts stand."""

    packed: msgspec.Raw
    places: list[Place]


def with_texts(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[Place]]:
    """The messages with texts for SentArguments, and where these stand."""
    places: list[Place] = []
    kept = []
    for at, message in enumerate(messages):
        calls = message.get("tool_calls")
        if not isinstance(calls, list):
            kept.append(message)
            continue
        written = [_text_of_call(call) for call in calls]
        places += [(at, number) for number, text in enumerate(written) if text is not None]
        kept.append(
            {
                **message,
                "tool_calls": [
                    call if text is None else _with_arguments(call, text)
                    for call, text in zip(calls, written, strict=True)
                ],
            }
        )
    return kept, places


def read_texts(messages: list[dict[str, Any]], places: Sequence[Place]) -> None:
    """The other way, in the messages themselves: texts at these places become objects that know
    them."""
    for at, number in places:
        function = messages[at]["tool_calls"][number]["function"]
        function["arguments"] = WrittenArguments(spaced(function["arguments"]))


def _text_of_call(call: Any) -> str | None:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    return arguments.text if isinstance(arguments, SentArguments) else None


def _with_arguments(call: dict[str, Any], arguments: str) -> dict[str, Any]:
    return {**call, "function": {**call["function"], "arguments": arguments}}


def spaced(text: str) -> str:
    """JSON without spaces with those of `tojson`; any other as it is."""
    if re.search(r"[ \t\n\r]", _STRING.sub("", text)):
        return text
    parts = _STRING.split(text)
    parts[::2] = [part.replace(",", ", ").replace(":", ": ") for part in parts[::2]]
    return "".join(parts)


class WrittenFloat(float):
    """A number that prints as it was written."""

    _text: str

    def __new__(cls, text: str) -> WrittenFloat:
        made = super().__new__(cls, text)
        made._text = text
        return made

    def __repr__(self) -> str:
        return self._text


_PLAIN = json.JSONDecoder(strict=False)
_LEAF = json.JSONDecoder(strict=False, parse_float=WrittenFloat)


class WrittenValue:
    """An object or an array, and its JSON. Names begin with `_`, as templates take any other for a
    key of theirs.

    Only what a template asks for is read, a level at a time: most show all of it by its text.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._read: Any = None

    def __repr__(self) -> str:
        return repr(self._members())

    def __eq__(self, other: object) -> bool:
        return bool(
            self._members() == (other._members() if isinstance(other, WrittenValue) else other)
        )

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._members())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._members())

    def __getitem__(self, key: Any) -> Any:
        return self._members()[key]

    def _members(self) -> Any:
        """A dict or a list."""
        if self._read is None:
            self._read = self._one_level()
        return self._read

    def _one_level(self) -> Any:
        raise NotImplementedError

    def _value(self, at: int) -> tuple[Any, int]:
        """What stands there, and its end."""
        value, end = _LEAF.raw_decode(self._text, at)
        if isinstance(value, dict):
            return WrittenObject(self._text[at:end]), end
        return (WrittenArray(self._text[at:end]) if isinstance(value, list) else value), end

    def _space(self, at: int) -> int:
        """The end of whitespace, if there is some."""
        found = _SPACE.match(self._text, at)
        return at if found is None else found.end()

    def _next(self, at: int) -> int:
        """Returns the place after the comma that follows, if one does, and the space around it."""
        at = self._space(at)
        return self._space(at + 1) if self._text[at] == "," else at


class WrittenObject(WrittenValue, Mapping[str, Any]):
    """A JSON object."""

    def _one_level(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        at = self._space(1)
        while self._text[at] != "}":
            key, end = _PLAIN.raw_decode(self._text, at)
            value, end = self._value(self._space(self._space(end) + 1))
            found[key] = value
            at = self._next(end)
        return found


class WrittenArray(WrittenValue, Sequence[Any]):
    """A JSON array."""

    def _one_level(self) -> list[Any]:
        found: list[Any] = []
        at = self._space(1)
        while self._text[at] != "]":
            value, end = self._value(at)
            found.append(value)
            at = self._next(end)
        return found


class WrittenArguments(WrittenObject):
    """All arguments of a call. A template that takes them for a text, as OpenAI's API has them,
    gets their text."""

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: str) -> str:
        return self._text + other

    def __radd__(self, other: str) -> str:
        return other + self._text


def text_of(value: object) -> str | None:
    """Returns the JSON that a value was read from; None: unknown."""
    return value._text if isinstance(value, WrittenValue | WrittenFloat) else None


def plain(value: WrittenValue) -> Any:
    """The value as dicts and lists, which know nothing of their text."""
    return _PLAIN.decode(value._text)


def changed(value: WrittenValue, change: Callable[[Any], Any], text: str) -> WrittenValue:
    """Returns the value with this text, and members to which `change` was done."""
    made = type(value)(text)
    members = value._members()
    made._read = (
        {change(key): change(each) for key, each in members.items()}
        if isinstance(members, dict)
        else [change(each) for each in members]
    )
    return made
