"""Documents may be laid out as people do it, however deep they are; and no further."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.grammars.byte_matcher import Served

TREE: dict[str, Any] = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"leaf": {"type": "integer"}, "inner": {"$ref": "#/$defs/tree"}},
        }
    },
}


def nested(depth: int) -> dict[str, Any]:
    """A schema whose documents have that many levels."""
    made: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        made = {"type": "object", "properties": {"inner": made}, "required": ["inner"]}
    return made


def document(depth: int) -> Any:
    made: Any = 1
    for _ in range(depth):
        made = {"inner": made}
    return made


@pytest.mark.parametrize("depth", [1, 3, 4, 5, 12, 40])
def test_natural_indentation_is_allowed_at_every_depth(depth: int) -> None:
    served = Served(nested(depth))
    for indent in (None, 2, 4, "\t"):
        text = json.dumps(document(depth), indent=indent)
        assert served.accepts(text)
        assert served.accepts(text.replace("\n", "\r\n"))


def test_also_where_the_schema_has_no_bound() -> None:
    for served in (Served(TREE), Served({}, "json_object")):
        deep = {"leaf": 1, "inner": json.loads(json.dumps(document(62)).replace("1", "{}"))}
        assert served.accepts(json.dumps(deep, indent=4))


@pytest.mark.parametrize("depth", [1, 4, 12])
def test_whitespace_is_bounded_by_the_depth(depth: int) -> None:
    served = Served(nested(depth))
    most = max(16, 4 * depth)
    inner = json.dumps(document(depth))[1:]
    assert served.accepts("{\n" + " " * (most - 1) + inner)
    assert not served.accepts("{\n" + " " * (most + 1) + inner)
    assert not served.accepts("{" + " " * 17 + inner)
    assert not served.accepts("{" + "\n" * 17 + inner)


def test_contents_of_tags_are_bounded_too() -> None:
    tag = {
        "format": {
            "type": "tag",
            "begin": "<a>",
            "content": {"type": "json_schema", "json_schema": nested(1)},
            "end": "</a>",
        }
    }
    served = Served(tag, "structural_tag")
    assert served.accepts('<a>{\n    "inner": 1\n}</a>')
    assert not served.accepts("<a>{" + " " * 17 + '"inner": 1}</a>')
