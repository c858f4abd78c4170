"""Values of JSON, compared as JSON schema does: 1 is 1.0, and true is no number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock_grammars.schemas.keywords import NARROWED, TYPES


def identity(value: Any) -> Any:
    """Equal for equal values."""
    if isinstance(value, bool) or value is None:
        return (str(value),)
    if isinstance(value, int | float):
        return ("number", value)
    if isinstance(value, str):
        return ("string", value)
    if isinstance(value, list):
        return ("array", *map(identity, value))
    return ("object", frozenset((name, identity(each)) for name, each in value.items()))


def same(one: Any, other: Any) -> bool:
    """Whether they are equal. To Python True is 1."""
    return bool(identity(one) == identity(other))


def type_of(value: Any) -> str:
    """One of keywords.TYPES."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    names: dict[type, str] = {str: "string", list: "array", dict: "object"}
    return names[type(value)]


def listed(schema: Any) -> list[Any] | None:
    """The values that `const` and `enum` leave, those of other types left out; None where there is
    neither."""
    if not isinstance(schema, dict):
        return None
    found: list[Any] | None = None
    if "const" in schema:
        found = [schema["const"]]
    if isinstance(schema.get("enum"), list):
        values = schema["enum"]
        if found is None:
            found = values
        else:
            known = {identity(value) for value in values}
            found = [value for value in found if identity(value) in known]
    if found is None or "type" not in schema:
        return found
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return [value for value in found if _is_of(value, types)]


def _is_of(value: Any, types: list[Any]) -> bool:
    kind = type_of(value)
    if kind == "number" and "integer" in types and float(value).is_integer():
        return True
    return kind in types


# Which types a schema's documents may have.

_DEPTH = 12


def kinds_of(schema: Any, definitions: Mapping[str, Any], depth: int = _DEPTH) -> frozenset[str]:
    """Returns which of keywords.TYPES the schema's documents may have, and maybe more.

    definitions: by reference, what has been rewritten so far.
    """
    if schema is False:
        return frozenset()
    found = frozenset(TYPES)
    if not isinstance(schema, dict) or not depth or NARROWED in schema:
        return found
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        found &= {"number" if each == "integer" else each for each in types if type(each) is str}
    values = listed(schema)
    if values is not None:
        found &= set(map(type_of, values))
    if schema.get("$ref") in definitions:
        found &= kinds_of(definitions[schema["$ref"]], definitions, depth - 1)
    for part in schema.get("allOf", ()):
        found &= kinds_of(part, definitions, depth - 1)
    for name in ("anyOf", "oneOf"):
        if schema.get(name):
            options = [kinds_of(each, definitions, depth - 1) for each in schema[name]]
            found &= frozenset().union(*options)
    return found
