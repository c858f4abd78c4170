"""Schemas out of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock_grammars.schemas.keywords import Schema
from penstock_grammars.schemas.values import identity, listed, same

_OBJECT = frozenset({"type", "properties", "required", "additionalProperties"})
_VALUES = frozenset({"enum", "const"})


def part_of_object(**keywords: Any) -> dict[str, Any]:
    """Returns an object schema that is a part of another one: explicitly open."""
    return {"type": "object", **keywords, "additionalProperties": True}


def any_of(options: list[Schema]) -> Schema:
    """Returns what holds where at least one of the options does."""
    options = [option for option in options if option is not False]
    if not options:
        return False
    if any(option is True or option == {} for option in options):
        return True
    return options[0] if len(options) == 1 else {"anyOf": options}


def all_of(parts: list[Schema]) -> Schema:
    """All of them. What speaks of an object's properties only becomes one, for llguidance
    multiplies the values that each part leaves to a property."""
    made: list[dict[str, Any]] = []
    for part in _flat(parts):
        if part is False:
            return False
        for at, other in enumerate(made):
            both = _merged(other, part)
            if both is not None:
                made[at] = both
                break
        else:
            made.append(part)
    if not made:
        return True
    return made[0] if len(made) == 1 else {"allOf": made}


def _flat(parts: list[Schema]) -> Iterator[Any]:
    for part in parts:
        if isinstance(part, dict) and part.keys() == {"allOf"}:
            yield from _flat(part["allOf"])
        elif part is not True and part != {}:
            yield part


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any] | None:
    """Returns a schema that says what both say; None if they aren't plain enough for that."""
    for part in (one, other):
        if part.keys() - _OBJECT or part.get("additionalProperties", True) is not True:
            return None
    if "type" in one and "type" in other and one["type"] != other["type"]:
        return None
    made = one | {name: each for name, each in other.items() if name not in one}
    if "required" in one and "required" in other:
        made["required"] = list(dict.fromkeys((*one["required"], *other["required"])))
    if "properties" in one and "properties" in other:
        made["properties"] = dict(one["properties"])
        for name, each in other["properties"].items():
            known = one["properties"].get(name, True)
            made["properties"][name] = _both_values(known, each)
    return made


def _both_values(one: Any, other: Any) -> Schema:
    if same(one, other):
        return one
    values, others = listed(one), listed(other)
    if values is None or others is None or (one.keys() | other.keys()) - _VALUES:
        return all_of([one, other])
    allowed = set(map(identity, others))
    left = [value for value in values if identity(value) in allowed]
    return {"enum": left} if left else False
