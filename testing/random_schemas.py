"""Random JSON schemas that every output can be made to follow, from a seed."""

from __future__ import annotations

import random
from typing import Any

PATTERNS = (r"^[A-Z][a-z]{1,8}$", r"^\d{4}-\d{2}$", r"^(red|green|blue)-[0-9a-f]{2,6}$")
FORMATS = ("date", "uuid", "ipv4", "time")


def schema(seed: int) -> dict[str, Any]:
    """An object or array of bounded size; some parts are behind references."""
    return _Maker(random.Random(seed)).whole()


class _Maker:
    def __init__(self, choose: random.Random) -> None:
        self._choose = choose
        self._defs: dict[str, Any] = {}

    def whole(self) -> dict[str, Any]:
        made = self._object(3) if self._choose.random() < 0.8 else self._array(3)
        return made | ({"$defs": self._defs} if self._defs else {})

    def _any(self, depth: int) -> dict[str, Any]:
        leaves = [self._string, self._integer, self._number, self._enum, self._plain]
        if depth <= 0:
            return self._choose.choice(leaves)()
        inner = [self._object, self._array, self._any_of, self._reference]
        return self._choose.choice([*leaves, *[lambda m=m: m(depth - 1) for m in inner]])()

    def _object(self, depth: int) -> dict[str, Any]:
        names = self._choose.sample(["id", "name", "ünit", "a b", "tags", "x", 'quote"', "n1"], 4)
        names = names[: self._choose.randint(1, 4)]
        required = [name for name in names if self._choose.random() < 0.7]
        return {
            "type": "object",
            "properties": {name: self._any(depth) for name in names},
            "required": required,
            "additionalProperties": False,
        }

    def _array(self, depth: int) -> dict[str, Any]:
        low = self._choose.randint(0, 2)
        high = low + self._choose.randint(0, 3)
        items = self._any(depth)
        return {"type": "array", "items": items, "minItems": low, "maxItems": max(1, high)}

    def _any_of(self, depth: int) -> dict[str, Any]:
        return {"anyOf": [self._any(depth) for _ in range(self._choose.randint(2, 3))]}

    def _reference(self, depth: int) -> dict[str, Any]:
        name = f"d{len(self._defs)}"
        self._defs[name] = {}
        self._defs[name] = self._any(depth)
        return {"$ref": f"#/$defs/{name}"}

    def _string(self) -> dict[str, Any]:
        kind = self._choose.random()
        if kind < 0.35:
            return {"type": "string", "pattern": self._choose.choice(PATTERNS)}
        if kind < 0.55:
            return {"type": "string", "format": self._choose.choice(FORMATS)}
        low = self._choose.randint(0, 3)
        return {"type": "string", "minLength": low, "maxLength": low + self._choose.randint(1, 12)}

    def _integer(self) -> dict[str, Any]:
        low = self._choose.randint(-1000, 1000)
        made: dict[str, Any] = {"type": "integer", "minimum": low}
        made["maximum"] = low + self._choose.randint(0, 5000)
        if self._choose.random() < 0.2:
            made = {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100}
        return made

    def _number(self) -> dict[str, Any]:
        low = round(self._choose.uniform(-10, 10), 2)
        bound = self._choose.choice(["maximum", "exclusiveMaximum"])
        return {"type": "number", "minimum": low, bound: round(low + 7.5, 2)}

    def _enum(self) -> dict[str, Any]:
        values = ["red", "日本", 7, -2.5, None, True, "a\\b"]
        return {"enum": self._choose.sample(values, self._choose.randint(1, 4))}

    def _plain(self) -> dict[str, Any]:
        return self._choose.choice([{"type": "boolean"}, {"type": "null"}, {"const": "fixed"}])
