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

import json
from collections.abc import Callable, Iterator
from itertools import cycle, islice
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
    parts: list[str] = []
    _write(value, 0, parts.append)
    return "".join(parts).encode()


def of_lines(count: int, value: Value) -> bytes:
    """JSON lines."""
    return b"".join(_line(value, number) for number in range(count))


def _line(value: Value, number: int) -> bytes:
    parts: list[str] = []
    _write(value, number, parts.append)
    return "".join(parts).encode() + b"\n"


def text_of(kind: str, size: int, number: int = 0) -> str:
    """A text of exactly `size` characters, which differs from that of another number if there is
    room for it."""
    piece = TEXTS[kind]
    mark = f"{number} " if number and size > 8 and kind not in _PURE else ""
    return mark + (piece * (size // len(piece) + 1))[: max(0, size - len(mark))]


_PURE = ("letter", "spaces", "separators", "brackets", "marks")
"""Kinds that nothing stands before, as it would change what they are."""


def _write(value: Value, number: int, write: Writer) -> None:
    if isinstance(value, dict):
        for name, maker in _MAKERS.items():
            if name in value:
                maker(value[name], number, write)
                return
        _join(
            "{",
            (
                (json.dumps(key) + ":", lambda each=each: _write(each, number, write))
                for key, each in value.items()
            ),
            "}",
            write,
        )
    elif isinstance(value, list):
        _join("[", (("", lambda each=each: _write(each, number, write)) for each in value), "]", write)
    else:
        write(json.dumps(value))


def _join(
    opening: str, parts: Iterator[tuple[str, Callable[[], None]]], closing: str, write: Writer
) -> None:
    write(opening)
    for place, (before, rest) in enumerate(parts):
        write(("," if place else "") + before)
        rest()
    write(closing)


def _text(given: list[Any], number: int, write: Writer) -> None:
    kind, size = given
    if kind in ESCAPED:
        write('"' + ESCAPED[kind] * size + '"')
    else:
        write(json.dumps(text_of(kind, size, number), ensure_ascii=False))


def _many(given: list[Any], number: int, write: Writer) -> None:
    count, *values = given
    if len(values) == 1 and isinstance(values[0], (str, int)):
        write("[" + ",".join([json.dumps(values[0])] * count) + "]")
        return
    turns = islice(cycle(values), count)
    elements = enumerate(turns, number * count + 1)
    _join("[", (("", lambda v=v, n=n: _write(v, n, write)) for n, v in elements), "]", write)


def _chain(given: list[Any], number: int, write: Writer) -> None:
    wrote = False
    for each in given:
        parts: list[str] = []
        _write(each, number, parts.append)
        inside = "".join(parts)[1:-1]
        if inside:
            write(("," if wrote else "[") + inside)
            wrote = True
    write("]" if wrote else "[]")


def _id(text: str, number: int, write: Writer) -> None:
    write(json.dumps(f"{text}{number}"))


def _table(given: list[Any], number: int, write: Writer) -> None:
    count, value = given
    _join(
        "{",
        ((f'"{n}":', lambda n=n: _write(value, n, write)) for n in range(1, count + 1)),
        "}",
        write,
    )


def _ids(count: int, number: int, write: Writer) -> None:
    write("[" + ",".join(map(str, range(1, count + 1))) + "]")


def _nested(given: list[Any], number: int, write: Writer) -> None:
    depth, kind = given
    opening, closing = {"list": ("[", "]"), "object": ('{"a":', "}")}[kind]
    write(opening * depth + "1" + closing * depth)


def _number(digits: int, number: int, write: Writer) -> None:
    write("1234567890"[: digits % 10 or 10] + "1234567890" * ((digits - 1) // 10))


def _schema(given: list[Any], number: int, write: Writer) -> None:
    count, size = given
    names = (json.dumps(text_of("words", size, n + 1)) for n in range(count))
    write('{"type":"object","properties":{')
    write(",".join(f'{name}:{{"type":"string"}}' for name in names))
    write("}}")


def _json(value: Value, number: int, write: Writer) -> None:
    parts: list[str] = []
    _write(value, number, parts.append)
    write(json.dumps("".join(parts)))


def _joined(value: Value, number: int, write: Writer) -> None:
    parts: list[str] = []
    _write(value, number, parts.append)
    write(json.dumps("".join(json.loads("".join(parts)))))


def _lines(given: list[Any], number: int, write: Writer) -> None:
    count, value = given
    write(json.dumps(of_lines(count, value).decode()))


_MAKERS: dict[str, Callable[[Any, int, Writer], None]] = {
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
