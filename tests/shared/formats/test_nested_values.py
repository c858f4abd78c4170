"""Values of keys and values, as JSON: what schemas say of them, and what is made otherwise."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.parsing.format import KeyedValues, MarkPair
from penstock.parsing.keyed_values import nested_json

MARKS = KeyedValues(
    key="~<", key_ends=((">", "schema"),), value=MarkPair("", "~</KEY>"), nested=True
)
POINT = {
    "type": "object",
    "properties": {"x": {"type": "string"}, "next": {"$ref": "#/$defs/Point"}},
}
ROOT = {"$defs": {"Point": POINT}}


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("1", {}, 1),
        ("1", {"type": "string"}, "1"),
        ("<a>1</a><b>x</b>", {}, {"a": 1, "b": "x"}),
        (" <item>1</item>\n<item>2</item> ", {}, [1, 2]),
        ("<item>1</item>", {"type": "object"}, {"item": 1}),
        ("<item>1</item>", {"type": "array", "items": {"type": "string"}}, ["1"]),
        (
            "<x>1</x><next><x>2</x></next>",
            {"$ref": "#/$defs/Point"},
            {"x": "1", "next": {"x": "2"}},
        ),
        ("<next><x>2</x></next>", {"anyOf": [{"type": "null"}, POINT]}, {"next": {"x": "2"}}),
        ("<a><a><a>1</a></a></a>", {}, {"a": {"a": {"a": 1}}}),
        ("<a></a>", {"type": "object", "properties": {"a": {"type": "array"}}}, {"a": []}),
        ("", {"type": "object"}, {}),
        ("", {}, ""),
        ("null", {"type": ["object", "null"]}, None),
        ("<a>1</a>", {"type": "string"}, "~<a>1~</a>"),
        ("<a>1</a><a>2</a>", {"type": "object"}, "~<a>1~</a>~<a>2~</a>"),
        ("<a>1</a>and", {"type": "object"}, "~<a>1~</a>and"),
        ("<a>1", {"type": "object"}, "~<a>1"),
        ("<a>1</b>", {"type": "object"}, "~<a>1~</b>"),
        ("</a>", {"type": "object"}, "~</a>"),
    ],
)
def test_what_a_value_says(text: str, schema: Any, value: Any) -> None:
    said = nested_json(text.replace("<", "~<"), MARKS, schema, ROOT)
    assert json.loads(said) == value


def test_depth_is_bounded() -> None:
    deep = json.loads(nested_json("~<a>" * 2000 + "~</a>" * 2000, MARKS, {}, {}))
    depth = 0
    while isinstance(deep, dict):
        deep, depth = deep["a"], depth + 1
    assert depth == 64
    assert deep.startswith("~<a>~<a>")
