"""The opposite of a schema, said without `not`.

Works on what has been rewritten. A schema is all of its keywords, so its opposite is that one of
them fails, and each fails for documents of its own type only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from penstock_worker.grammar_text.schemas.combining import all_of, any_of, part_of_object
from penstock_worker.grammar_text.schemas.complement import complement
from penstock_worker.grammar_text.schemas.errors import Unservable
from penstock_worker.grammar_text.schemas.keywords import ABOUT, NARROWED, TYPES, Schema
from penstock_worker.grammar_text.schemas.kinds import kinds_of
from penstock_worker.grammar_text.schemas.other_texts import all_but
from penstock_worker.grammar_text.schemas.values import identity, listed, type_of

MAX_STEPS = 20_000
"""Of one document's negations together."""

_HANDLED = frozenset(
    (
        *("type", "const", "enum", "anyOf", "allOf", "$ref", "properties", "required"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "pattern"),
    )
)


class Negation:
    """definitions: what references refer to."""

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._steps = 0
        self._open: set[str] = set()

    def of(self, schema: Any, within: Any = True, *, lax: bool = False) -> Schema:
        """The opposite.  Raises Unservable where there is no way to say it.

        within: what else is known of the document. Where that rules a case out, it needn't be said.
        lax: a part of the opposite will do: what can't be said is left out.
        """
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise Unservable("the excluded schema is too large")
        if isinstance(schema, bool):
            return not schema
        if NARROWED in schema:
            raise Unservable("a schema that can't be said in full can't be excluded")
        kinds = kinds_of(within, self._definitions)
        said = [
            self._other_types(schema, kinds),
            self._other_values(schema, within, kinds),
            self._combined(schema, within, lax),
            _outside(schema, kinds),
            _other_texts(schema, kinds),
        ]
        if "object" in kinds:
            said.append(self._properties(schema, within, lax))
        options: list[Schema] = []
        for each in said:
            try:
                options += each
            except Unservable:
                if not lax:
                    raise
        if "oneOf" in schema and not lax:
            raise Unservable("the negation of 'oneOf' is not supported")
        for name in schema.keys() - _HANDLED:
            if ABOUT.get(name) in kinds and not _says_nothing(name, schema[name]) and not lax:
                raise Unservable(f"what fails {name!r} can't be described")
        return any_of(options)

    def _other_types(self, schema: dict[str, Any], kinds: frozenset[str]) -> Iterator[Schema]:
        if "type" not in schema:
            return
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        others = [kind for kind in TYPES if kind in kinds and kind not in types]
        if "integer" in types and "number" in others:
            others.remove("number")
        if others:
            yield {"type": others}
        if "integer" in types and "number" not in types and "number" in kinds:
            raise Unservable("the type 'number without integer' is not supported")

    def _other_values(
        self, schema: dict[str, Any], within: Any, kinds: frozenset[str]
    ) -> Iterator[Schema]:
        values = listed({name: schema[name] for name in ("const", "enum") if name in schema})
        if values is None:
            return
        known = listed(within)
        if known is not None:
            excluded = set(map(identity, values))
            left = [value for value in known if identity(value) not in excluded]
            yield {"enum": left} if left else False
            return
        for kind in TYPES:
            if kind in kinds:
                yield from _except(kind, [each for each in values if type_of(each) == kind])

    def _combined(self, schema: dict[str, Any], within: Any, lax: bool) -> Iterator[Schema]:
        for part in schema.get("allOf", ()):
            yield self.of(part, within, lax=lax)
        if "anyOf" in schema:
            yield all_of([self.of(each, within, lax=lax) for each in schema["anyOf"]])
        reference = schema.get("$ref")
        if reference is None:
            return
        if reference in self._open or reference not in self._definitions:
            raise Unservable("the excluded schema refers to itself")
        self._open.add(reference)
        try:
            yield self.of(self._definitions[reference], within, lax=lax)
        finally:
            self._open.remove(reference)

    def _properties(self, schema: dict[str, Any], within: Any, lax: bool) -> Iterator[Schema]:
        properties, required = schema.get("properties", {}), schema.get("required", ())
        known = within.get("properties", {}) if isinstance(within, dict) else {}
        there = within.get("required", ()) if isinstance(within, dict) else ()
        for name in dict.fromkeys((*required, *properties)):
            try:
                other = self.of(properties.get(name, True), known.get(name, True), lax=lax)
            except Unservable:
                if not lax:
                    raise
                other = False
            if other is False and (name not in required or name in there):
                continue
            if name in required:
                yield part_of_object(properties={name: other})
            else:
                yield part_of_object(properties={name: other}, required=[name])
        if schema.get("minProperties") == 1:
            yield {"const": {}}
        elif schema.get("minProperties", 0) and not lax:
            raise Unservable("the negation of 'minProperties' is not supported")


def _other_texts(schema: dict[str, Any], kinds: frozenset[str]) -> Iterator[Schema]:
    """Those that its pattern doesn't match."""
    if "pattern" in schema and "string" in kinds:
        yield {"type": "string", "pattern": complement(schema["pattern"]), NARROWED: _DIALECTS}


_DIALECTS = "this not is not supported: all that fails the pattern can't be described"


def _says_nothing(name: str, value: Any) -> bool:
    if name == "patternProperties":
        return all(each is True or each == {} for each in value.values())
    return value is True or value == {}


def _except(kind: str, values: list[Any]) -> Iterator[Schema]:
    """All values of a type but some."""
    if not values:
        yield {"type": kind}
    elif kind == "boolean":
        yield from ({"const": each} for each in (False, True) if each not in values)
    elif kind == "number":
        yield from _numbers_between(sorted(set(values)))
    elif kind == "string":
        yield {"type": "string", "pattern": all_but(values)}
    elif kind == "array":
        if any(values):
            raise Unservable("excluding a non-empty array is not supported")
        yield {"type": "array", "minItems": 1}
    elif kind == "object":
        if any(values):
            raise Unservable("excluding a non-empty object is not supported")
        yield part_of_object(minProperties=1)


def _numbers_between(values: list[float]) -> Iterator[Schema]:
    yield {"type": "number", "exclusiveMaximum": values[0]}
    for low, high in itertools.pairwise(values):
        yield {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
    yield {"type": "number", "exclusiveMinimum": values[-1]}


def _outside(schema: dict[str, Any], kinds: frozenset[str]) -> Iterator[Schema]:
    """What is out of one of its bounds."""
    for name, kind, other, by in (
        ("minimum", "number", "exclusiveMaximum", 0),
        ("maximum", "number", "exclusiveMinimum", 0),
        ("exclusiveMinimum", "number", "maximum", 0),
        ("exclusiveMaximum", "number", "minimum", 0),
        ("minLength", "string", "maxLength", -1),
        ("maxLength", "string", "minLength", 1),
        ("minItems", "array", "maxItems", -1),
        ("maxItems", "array", "minItems", 1),
    ):
        if name in schema and kind in kinds:
            bound = schema[name] + by
            if kind == "number" or bound >= 0:
                yield {"type": kind, other: bound}
