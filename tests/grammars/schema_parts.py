"""Schemas that several cases are made of."""

from __future__ import annotations

from typing import Any

OPEN = {"type": "object", "additionalProperties": True}
ABC = OPEN | {"properties": {"a": {"type": "integer"}, "b": {}, "c": {}}}
CIRCLE = {
    "type": "object",
    "properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}},
    "required": ["kind", "radius"],
}
SQUARE = {
    "type": "object",
    "properties": {"kind": {"const": "square"}, "side": {"type": "number"}},
    "required": ["kind", "side"],
}
KINDS = OPEN | {
    "properties": {"kind": {"enum": ["x", "y", "z"]}, "b": {}, "c": {}},
    "required": ["kind"],
}


def kind_is(name: str) -> dict[str, Any]:
    return {"properties": {"kind": {"const": name}}, "required": ["kind"]}
