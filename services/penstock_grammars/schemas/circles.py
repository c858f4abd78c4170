"""Circular references with sibling keywords.

llguidance joins what is said of one value before it writes the grammar, and can't join a reference
with anything as long as it is at what that refers to.  So wherever a reference into a circle is to
be joined, that is done here, and the result gets a name: where the same is to be joined again
inside of it, a reference to that name is enough.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from penstock_grammars.schemas.combining import any_of
from penstock_grammars.schemas.complement import all_but
from penstock_grammars.schemas.examples import matched
from penstock_grammars.schemas.keywords import (
    LISTS,
    MAPS,
    SINGLE,
    TYPES,
    Unservable,
    inner,
)
from penstock_grammars.schemas.values import kinds_of, same

COMPLAINT = "circular references with sibling keys"
"""How llguidance's complaint begins."""
MAX_JOINED = 2_000
"""Schemas that are joined in one document."""
_DEFINITIONS = "#/$defs/"
_IN_PLACE = ("allOf", "anyOf")


def unrolled(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema with no reference into a circle left to be joined. Raises Unservable."""
    return _Unrolling(schema.get("$defs", {})).whole(schema)


class _Unrolling:
    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._by_reference = {_DEFINITIONS + name: each for name, each in definitions.items()}
        self._circular = _circular(definitions)
        self._names: dict[str, str] = {}
        """Names of the joined schemas, by the JSON text of what is joined."""
        self._made: dict[str, Any] = {}
        self._steps = 0

    def whole(self, schema: dict[str, Any]) -> dict[str, Any]:
        made = self._schema({name: each for name, each in schema.items() if name != "$defs"})
        defined = {name: self._schema(each) for name, each in self._definitions.items()}
        return made | {"$defs": defined | self._made}

    def _schema(self, node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        if not _joins(node) or not self._circular & set(_referred(node)):
            return self._inside(node)
        text = json.dumps(node)
        name = self._names.get(text)
        if name is None:
            name = self._names[text] = f"joined{len(self._names)}"
            self._made[name] = self._joined(list(_flat(self._spelled_out(node, ()))))
        return {"$ref": _DEFINITIONS + name}

    def _joined(self, parts: list[Any]) -> Any:
        """What holds where all parts hold, each of which is no allOf."""
        self._steps += 1
        if self._steps > MAX_JOINED:
            raise Unservable(f"{COMPLAINT} make this schema too large")
        kinds = frozenset(TYPES)
        for at, part in enumerate(parts):
            if part is False:
                return False
            kinds &= kinds_of(part, self._by_reference)
            if not kinds:
                return False
            if "anyOf" in part:
                rest = {name: each for name, each in part.items() if name != "anyOf"}
                before, after = [*parts[:at], *([rest] if rest else [])], parts[at + 1 :]
                options = [self._joined([*before, *_flat(o), *after]) for o in part["anyOf"]]
                return any_of(options)
        contained = _CONTAINED
        if any("prefixItems" in part for part in parts):
            contained -= {"items"}
        containers = [{n: each for n, each in p.items() if n in contained} for p in parts]
        others = [{n: each for n, each in p.items() if n not in contained} for p in parts]
        containers = [each for each in containers if each]
        said = self._inside(_container(containers)) if containers else {}
        if all(same(each, others[0]) for each in others):
            return others[0] | said
        return {"allOf": [each for each in (*others, said) if each]}

    def _spelled_out(self, node: Any, open: tuple[str, ...]) -> Any:
        """Returns the node with what it refers to in place of its references.  open: those that are
        being spelled out."""
        if not isinstance(node, dict):
            return node
        made = dict(node)
        for name in _IN_PLACE:
            if name in made:
                made[name] = [self._spelled_out(each, open) for each in made[name]]
        name = _target(node)
        if name not in self._definitions or name in open:
            return made
        target = self._spelled_out(self._definitions[name], (*open, name))
        first = next(iter(made)) == "$ref"
        del made["$ref"]
        if not made:
            return target
        return {"allOf": [target, made] if first else [made, target]}

    def _apart(self, node: dict[str, Any]) -> dict[str, Any]:
        """A copy, in which listed properties aren't joined with what a pattern says of them."""
        made = dict(node)
        properties = made["properties"] = dict(made.get("properties", {}))
        patterns = made["patternProperties"] = {}
        for pattern, said in node.get("patternProperties", {}).items():
            joined = []
            if self._circular & set(_referred(said)):
                joined = [name for name in properties if matched(pattern, name)]
            for name in joined:
                properties[name] = _all_of([properties[name], said])
            if joined and pattern in _EVERYTHING:
                pattern = all_but(joined)
            else:
                properties |= {name: True for name in joined if same(properties[name], said)}
            patterns[pattern] = said
        return {name: each for name, each in made.items() if each != {} or name in node}

    def _inside(self, node: dict[str, Any]) -> dict[str, Any]:
        made = self._apart(node)
        for name in made:
            if name in LISTS:
                made[name] = [self._schema(each) for each in made[name]]
            elif name in MAPS:
                made[name] = {key: self._schema(each) for key, each in made[name].items()}
            elif name in SINGLE:
                made[name] = self._schema(made[name])
        return made


_CONTAINED = frozenset(
    ("properties", "patternProperties", "additionalProperties", "required", "items")
)


_EVERYTHING = ("", ".*", "^.*$", "^.*", ".*$", "(.*)", "^(.*)$", r"[\s\S]*")


def _container(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """One that has the properties or items that all of them say."""
    made: dict[str, Any] = {}
    names = dict.fromkeys(name for part in parts for name in part.get("properties", {}))
    if names:
        made["properties"] = {name: _all_of(_property(parts, name)) for name in names}
    patterns = dict.fromkeys(n for part in parts for n in part.get("patternProperties", {}))
    if patterns:
        made["patternProperties"] = {
            pattern: _all_of(
                part.get("patternProperties", {}).get(pattern, _rest(part)) for part in parts
            )
            for pattern in patterns
        }
    if any("additionalProperties" in part for part in parts):
        made["additionalProperties"] = _all_of(map(_rest, parts))
    if any("items" in part for part in parts):
        made["items"] = _all_of(part.get("items", True) for part in parts)
    required = dict.fromkeys(name for part in parts for name in part.get("required", ()))
    return made | ({"required": list(required)} if required else {})


def _all_of(schemas: Iterable[Any]) -> Any:
    said: list[Any] = []
    for each in schemas:
        if each is False:
            return False
        if each is not True and each != {} and not any(same(each, other) for other in said):
            said.append(each)
    if not said:
        return True
    return said[0] if len(said) == 1 else {"allOf": said}


def _property(parts: list[dict[str, Any]], name: str) -> Iterator[Any]:
    """Yields what the schemas say of a property, but for what they say by patterns."""
    for part in parts:
        if name in part.get("properties", {}):
            yield part["properties"][name]
        elif not any(matched(pattern, name) for pattern in part.get("patternProperties", {})):
            yield _rest(part)


def _rest(part: dict[str, Any]) -> Any:
    return part.get("additionalProperties", True)


def _flat(schema: Any) -> Iterator[Any]:
    """The parts of which it is all; none of True."""
    if schema is True:
        return
    if not isinstance(schema, dict) or "allOf" not in schema:
        yield schema
        return
    own = {name: each for name, each in schema.items() if name != "allOf"}
    if own:
        yield own
    for each in schema["allOf"]:
        yield from _flat(each)


def _joins(node: dict[str, Any]) -> bool:
    """Whether it says several things of one value."""
    own = bool(node.keys() - {*_IN_PLACE, "$ref"})
    return own + len(node.get("allOf", ())) + ("anyOf" in node) + ("$ref" in node) > 1


def _target(node: dict[str, Any]) -> str:
    return str(node.get("$ref", "")).removeprefix(_DEFINITIONS)


def _circular(definitions: dict[str, Any]) -> set[str]:
    """Names of the definitions from which one can come back to one that one has been at."""
    targets = {name: set(_referred(each)) for name, each in definitions.items()}
    while True:  # What leads nowhere but to what is in no circle is in none.
        ends = {name for name, others in targets.items() if not others & targets.keys()}
        if not ends:
            return set(targets)
        for name in ends:
            del targets[name]


def _referred(schema: Any) -> Iterator[str]:
    stack = [schema]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            if "$ref" in node:
                yield _target(node)
            stack += [each for _, each in inner(node)]
