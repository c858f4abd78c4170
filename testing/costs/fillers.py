"""Bodies as recipes: JSON in which some objects stand for what would be megabytes.

{"$text": [KIND, SIZE]}             a text of so many characters
{"$many": [COUNT, VALUE, ...]}      a list of so many elements, which are the values in turn
{"$chain": [LIST, LIST, ...]}       their elements, one list after the other
{"$table": [COUNT, VALUE]}          an object of so many fields
{"$id": TEXT}                       the text and the number of the element that it is in
{"$ids": COUNT}                     a list of so many numbers, all different
{"$nested": [DEPTH, "list"|"object"]}
{"$number": DIGITS}                 a whole number
{"$schema": [COUNT, SIZE]}          a JSON schema of so many properties, with names so long
{"$json": VALUE}                    a text that is this value as JSON
{"$joined": VALUE}                  a text that joins a list of texts
{"$lines": [COUNT, VALUE]}          JSON lines
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

Value = Any
"""JSON, and such objects in it."""

_SOLID = (
    "qzxvkjwpfbhgmdnclrstaeiou"  # No words, and no separator that a text could be cut at.
    "xqjzkvbpygfwmucldrhsnioate"
    "zyxwvutsrqponmlkjihgfedcba"
)
_WORDS = "the river runs past seven old mills and a very long stone bridge before it turns "
TEXTS: dict[str, str] = {
    "letter": "a",
    "words": _WORDS,
    "solid": _SOLID,
    "spaces": " ",
    "separators": " \n\t.,;:-",
    "wide": "über 漢字かな交じり 🙂👍🏽 नमस्ते ",
    "special": "<|im_end|><|im_start|>user<start_of_turn><|eot_id|><end_of_turn>",
    "digits": "1234567890",
    "marks": "<",
    "slashes": "a/",
    "braces": "{{ '{%' }}{# #}",
    "lines": "a\n",
    "brackets": "[",
    "dashes": "a-b_c.d ",
    "quotes": '"\\',
}
"""What a text of each kind repeats."""
ESCAPED = {"escapes": "\\u0041", "wide_escapes": "\\ud83d\\ude00", "newlines": "\\n"}
"""What is written in the body, where each is a character or two of the text."""
KINDS = (*TEXTS, *ESCAPED)

Writer = Callable[[str], None]


def written(value: Value) -> bytes:
    """The body."""
    return _write(value, "").encode()


def of_lines(count: int, value: Value) -> bytes:
    """JSON lines."""
    return "".join(each + "\n" for each in _numbered(_write(value, _MARKS[0]), 0, count)).encode()


def length_of(value: Value) -> int:
    """Bytes of the body, about, without writing it."""
    if isinstance(value, list):
        return 2 + sum(length_of(each) + 1 for each in value)
    if not isinstance(value, dict):
        return len(json.dumps(value))
    given: Any
    for name, given in value.items():
        match name:
            case "$text":
                kind, size = given
                width = len(ESCAPED[kind]) if kind in ESCAPED else _WIDTH.get(kind, 1)
                return 2 + int(size) * width
            case "$many" | "$lines":
                count, *values = given
                return int(count) * sum(length_of(each) + 1 for each in values) // len(values)
            case "$table":
                return int(given[0]) * (length_of(given[1]) + 8)
            case "$chain":
                return sum(map(length_of, given))
            case "$id":
                return len(given) + 8
            case "$ids":
                return 7 * int(given)
            case "$nested":
                return int(given[0]) * (2 if given[1] == "list" else 6)
            case "$number":
                return int(given)
            case "$schema":
                return int(given[0]) * (int(given[1]) + 22)
            case "$json" | "$joined":
                return 2 * length_of(given)
    return 2 + sum(len(name) + 4 + length_of(each) for name, each in value.items())


def text_of(kind: str, size: int, number: str = "") -> str:
    """A text of exactly `size` characters. number: the marks of the element that it is in, whose
    numbers the text begins with if there is room for them."""
    piece = TEXTS[kind]
    length = _DIGITS * len(number) + 1
    marked = bool(number) and size > length + 8 and kind not in _PURE
    rest = size - length if marked else size
    filled = (piece * (rest // len(piece) + 1))[:rest]
    return f"{number} {filled}" if marked else filled


_DIGITS = 6
_MARKS = "\ue000\ue001\ue002\ue003\ue004\ue005\ue006\ue007"
"""Stand for the number of an element, each for those of a list within another."""
_WIDTH = {"wide": 3, "quotes": 2, "separators": 2, "lines": 2}
"""Bytes of a character in a body, about, where they are more than one."""
_PURE = ("letter", "spaces", "separators", "brackets", "marks")
"""Kinds that nothing stands before, as it would change what they are."""


def _write(value: Value, number: str) -> str:
    """JSON. number: marks of the elements that it is in, which are replaced by numbers later."""
    if isinstance(value, dict):
        for name, maker in _MAKERS.items():
            if name in value:
                made: str = maker(value[name], number)
                return made
        fields = (f"{_dumped(key)}:{_write(each, number)}" for key, each in value.items())
        return "{" + ",".join(fields) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_write(each, number) for each in value) + "]"
    return _dumped(value)


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _numbered(element: str, depth: int, count: int, first: int = 1, step: int = 1) -> Iterator[str]:
    """The element with numbers in the place of its own mark."""
    parts = element.split(_MARKS[depth])
    if len(parts) == 1:
        return itertools.repeat(element, count)
    numbers = range(first, first + step * count, step)
    return (f"{number:0{_DIGITS}d}".join(parts) for number in numbers)


def _text(given: list[Any], number: str) -> str:
    kind, size = given
    if kind in ESCAPED:
        return '"' + ESCAPED[kind] * size + '"'
    return _dumped(text_of(kind, size, number))


def _many(given: list[Any], number: str) -> str:
    count, *values = given
    depth, turns = len(number), len(values)
    columns = [
        _numbered(_write(value, number + _MARKS[depth]), depth, count // turns + 1, at, turns)
        for at, value in enumerate(values, 1)
    ]
    elements = (
        columns[0] if turns == 1 else itertools.chain.from_iterable(zip(*columns, strict=True))
    )
    return "[" + ",".join(itertools.islice(elements, count)) + "]"


def _chain(given: list[Any], number: str) -> str:
    inside = (_write(each, number)[1:-1] for each in given)
    return "[" + ",".join(each for each in inside if each) + "]"


def _id(text: str, number: str) -> str:
    return _dumped(text + number)


def _table(given: list[Any], number: str) -> str:
    count, value = given
    depth = len(number)
    elements = _numbered(_write(value, number + _MARKS[depth]), depth, count)
    return "{" + ",".join(f'"{n}":{each}' for n, each in enumerate(elements, 1)) + "}"


def _ids(count: int, number: str) -> str:
    return "[" + ",".join(map(str, range(1, count + 1))) + "]"


def _nested(given: list[Any], number: str) -> str:
    depth, kind = given
    opening, closing = {"list": ("[", "]"), "object": ('{"a":', "}")}[kind]
    return f"{opening * depth}1{closing * depth}"


def _number(digits: int, number: str) -> str:
    return ("1234567890" * (digits // 10 + 1))[:digits]


def _schema(given: list[Any], number: str) -> str:
    count, size = given
    field = f'{_dumped(text_of("words", size, _MARKS[-1]))}:{{"type":"string"}}'
    fields = ",".join(_numbered(field, len(_MARKS) - 1, count))
    return f'{{"type":"object","properties":{{{fields}}}}}'


def _json(value: Value, number: str) -> str:
    return _dumped(_write(value, number))


def _joined(value: Value, number: str) -> str:
    return _dumped("".join(json.loads(_write(value, number))))


def _lines(given: list[Any], number: str) -> str:
    count, value = given
    return _dumped(of_lines(count, value).decode())


_MAKERS: dict[str, Callable[[Any, str], str]] = {
    "$text": _text,
    "$many": _many,
    "$chain": _chain,
    "$id": _id,
    "$table": _table,
    "$ids": _ids,
    "$nested": _nested,
    "$number": _number,
    "$schema": _schema,
    "$json": _json,
    "$joined": _joined,
    "$lines": _lines,
}
