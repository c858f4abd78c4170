"""Turns of an assistant, and how a model of each family writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Argument = tuple[str, str]
"""A name, and the value's JSON as the model spells it."""


@dataclass(frozen=True)
class Call:
    """A call of one of the tools of all cases. text: its arguments, where a model that writes JSON
    puts other spaces than json.dumps between them."""

    name: str
    arguments: tuple[Argument, ...]
    text: str = ""

    def object(self) -> str:
        members = ", ".join(f'"{key}": {value}' for key, value in self.arguments)
        return self.text or f"{{{members}}}"


@dataclass(frozen=True)
class Turn:
    """What the model thinks, says and calls, in this order."""

    thought: str = ""
    said: str = ""
    calls: tuple[Call, ...] = ()


PARIS = Call("get_weather", (("city", '"Paris"'),))
ROME = Call("get_weather", (("city", '"Rome"'), ("days", "3")))
VALUES = Call(
    "get_weather",
    (
        ("sure", "true"),
        ("city", r'"São \"Paulo\"\n1 日本 😀"'),
        ("deep", '{"a": {"b": [1, null]}}'),
        ("tags", '["a", "b"]'),
    ),
)
SPELLED = Call(
    "add",
    (("b", r'{"y":  1e5, "x": "caf\u00e9", "w":1.0}'), ("a", "1e2")),
    r'{"b": {"y":  1e5, "x": "caf\u00e9", "w":1.0},' + '\n "a": 1e2}',
)
TURNS = {
    "text": Turn(said="It rains."),
    "thoughts": Turn("Hm.", "It rains."),
    "call": Turn(calls=(PARIS,)),
    "thoughts, call": Turn("Hm.", calls=(PARIS,)),
    "text, call": Turn(said="Let me see.", calls=(PARIS,)),
    "two calls": Turn(calls=(PARIS, ROME)),
    "values": Turn(calls=(VALUES,)),
    "spelling": Turn(calls=(SPELLED,)),
}


def as_object(call: Call) -> str:
    return call.object()


def as_keys(pair: str) -> Callable[[Call], str]:
    """pair: of a key and its value; a text stands as it is."""

    def written(call: Call) -> str:
        return "".join(
            pair.replace("{key}", key).replace("{value}", _text(value))
            for key, value in call.arguments
        )

    return written


def as_dsml(call: Call) -> str:
    return "".join(
        f'<｜DSML｜parameter name="{key}" string="{str(value[0] == chr(34)).lower()}">'
        f"{_text(value)}</｜DSML｜parameter>\n"
        for key, value in call.arguments
    )


def as_python(call: Call) -> str:
    """A call as LFM2's templates teach it: objects as in JSON, other values as in Python."""
    return ", ".join(f"{key}={_python(value)}" for key, value in call.arguments)


def _python(value: str) -> str:
    found = json.loads(value)
    if isinstance(found, str):
        return f"'{found}'"
    return str(found) if isinstance(found, list | bool) else value


def as_loose(call: Call) -> str:
    """Gemma 4's: keys without quotes, and texts between marks."""
    members = (f"{key}:{_loose(_NUMBERS.decode(value))}" for key, value in call.arguments)
    return "{" + ",".join(members) + "}"


class _Number(str):
    """A number as it is spelled."""


_NUMBERS = json.JSONDecoder(parse_float=_Number, parse_int=_Number)


def _loose(value: Any) -> str:
    if isinstance(value, _Number):
        return value
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_loose(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return f"[{','.join(map(_loose, value))}]"
    return json.dumps(value)


def _text(value: str) -> str:
    found = json.loads(value)
    return found if isinstance(found, str) else value
