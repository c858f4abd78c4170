"""Whether two schemas have no document in common.

Works on what has been rewritten. What isn't found out counts as no.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock_grammars.schemas.keywords import NARROWED, is_narrowed
from penstock_grammars.schemas.values import identity, kinds_of, listed, type_of

MAX_STEPS = 50_000
MAX_PROOFS = 100
_DEPTH = 8
_BOUNDS = {
    "number": ("minimum", "maximum"),
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
}


class Disjointness:
    """definitions: what references refer to.  impossible: whether a schema, with those definitions,
    certainly has no document; asked where nothing here finds out."""

    def __init__(self, definitions: Mapping[str, Any], impossible: Callable[[Any], bool]) -> None:
        self._definitions = definitions
        self._impossible = impossible
        self._steps = self._proofs = 0

    def holds(self, one: Any, other: Any) -> bool:
        """Whether they are certainly disjoint."""
        if self._found(one, other, _DEPTH):
            return True
        if is_narrowed(one, self._definitions) or is_narrowed(other, self._definitions):
            return False
        self._proofs += 1
        return self._proofs <= MAX_PROOFS and self._impossible({"allOf": [one, other]})

    def _found(self, one: Any, other: Any, depth: int) -> bool:
        if one is False or other is False:
            return True
        self._steps += 1
        if not isinstance(one, dict) or not isinstance(other, dict):
            return False
        if not depth or self._steps > MAX_STEPS or NARROWED in one or NARROWED in other:
            return False
        common = kinds_of(one, self._definitions) & kinds_of(other, self._definitions)
        if not common:
            return True
        ours, theirs = list(self._parts(one, depth)), list(self._parts(other, depth))
        for parts, against in ((ours, other), (theirs, one)):
            for part in parts:
                if self._no_option(part, against, depth):
                    return True
        pairs = [(a, b) for a in ours for b in theirs]
        return all(self._no_common(kind, ours, theirs, pairs, depth) for kind in common)

    def _parts(self, schema: Any, depth: int) -> Iterator[dict[str, Any]]:
        """The schemas that hold wherever it holds, itself among them."""
        if not isinstance(schema, dict) or not depth or NARROWED in schema:
            return
        yield schema
        if schema.get("$ref") in self._definitions:
            yield from self._parts(self._definitions[schema["$ref"]], depth - 1)
        for part in schema.get("allOf", ()):
            yield from self._parts(part, depth - 1)

    def _no_option(self, part: dict[str, Any], against: Any, depth: int) -> bool:
        """Whether each of its alternatives is disjoint from `against`."""
        values = listed(part)
        if values is not None:
            others = [listed(each) for each in self._parts(against, depth)]
            known = [set(map(identity, each)) for each in others if each is not None]
            return all(
                any(identity(value) not in each for each in known)
                or self._found(_only(value), against, depth - 1)
                for value in values
            )
        if not part.get("anyOf"):
            return False
        return all(self._found(each, against, depth - 1) for each in part["anyOf"])

    def _no_common(
        self,
        kind: str,
        ours: list[dict[str, Any]],
        theirs: list[dict[str, Any]],
        pairs: list[tuple[dict[str, Any], dict[str, Any]]],
        depth: int,
    ) -> bool:
        """Whether no document of that type is in both."""
        if kind == "object":
            return self._objects(ours, theirs, depth)
        if kind not in _BOUNDS:
            return False
        return any(_apart(a, b, kind) or _apart(b, a, kind) for a, b in pairs)

    def _objects(
        self, ours: list[dict[str, Any]], theirs: list[dict[str, Any]], depth: int
    ) -> bool:
        required = {name for part in (*ours, *theirs) for name in part.get("required", ())}
        for name in required:
            said = [[_property(part, name) for part in parts] for parts in (ours, theirs)]
            if False in (*said[0], *said[1]):
                return True
            if any(self._found(a, b, depth - 1) for a in said[0] for b in said[1]):
                return True
        return False


def _only(value: Any) -> dict[str, Any]:
    """A schema that the value is valid for, in keywords that are easily compared."""
    kind = type_of(value)
    made: dict[str, Any] = {"type": kind}
    if kind == "number":
        made |= {"minimum": value, "maximum": value}
    elif kind == "string":
        made |= {"minLength": len(value), "maxLength": len(value)}
    elif kind == "array":
        made |= {"minItems": len(value), "maxItems": len(value)}
    elif kind == "object":
        made["properties"] = {name: {"const": each} for name, each in value.items()}
        made |= {"required": list(value), "additionalProperties": False}
    return made


def _property(part: dict[str, Any], name: str) -> Any:
    """What a schema says of a property."""
    if name in part.get("properties", {}):
        return part["properties"][name]
    if part.get("patternProperties"):
        return True
    return part.get("additionalProperties", True)


def _apart(low: dict[str, Any], high: dict[str, Any], kind: str) -> bool:
    """Whether all that is in `low` is below all that is in `high`."""
    least, most = _BOUNDS[kind]
    if most in low and least in high and low[most] < high[least]:
        return True
    if kind != "number":
        return False
    tops = [low[name] for name in (most, "exclusiveMaximum") if name in low]
    bottoms = [high[name] for name in (least, "exclusiveMinimum") if name in high]
    if not tops or not bottoms or min(tops) > max(bottoms):
        return False
    return (
        min(tops) < max(bottoms)
        or low.get("exclusiveMaximum") == min(tops)
        or high.get("exclusiveMinimum") == max(bottoms)
    )
