"""The opposite of a schema, said without `not`.

Works on what has been rewritten. A schema is all of its keywords, so its opposite is that one of
them fails, and each fails for documents of its own type only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from penstock_grammars.schemas.combining import all_of, any_of, part_of_object
from penstock_grammars.schemas.examples import matched, name_but, name_for
from penstock_grammars.schemas.keywords import (
    ABOUT,
    NARROWED,
    OPPOSITE,
    TYPES,
    Schema,
    Unservable,
)
from penstock_grammars.schemas.opposites import (
    except_scalars,
    in_part,
    no_multiples,
    other_formats,
    other_texts,
    outside,
)
from penstock_grammars.schemas.values import identity, kinds_of, listed, type_of

MAX_STEPS = 20_000
"""The steps that one document's negations may take together."""

_HANDLED = frozenset(
    (
        *("type", "const", "enum", "anyOf", "allOf", "$ref", "properties", "required"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "pattern"),
    )
)
_HANDLED_IN_PART = frozenset(
    (
        *("format", "multipleOf", "items", "prefixItems"),
        *("maxProperties", "patternProperties", "additionalProperties"),
    )
)
MAX_PLACES = 8
"""The places of an array, after its prefixItems, at which the item that is wrong may stand."""
MAX_NAMES = 4
"""The names that the property that is wrong may have, where it might be any property."""


class Negation:
    """definitions: what references refer to.  in_part: whether what fails a keyword is also said
    where only a part of it can be."""

    def __init__(self, definitions: Mapping[str, Any], *, in_part: bool = False) -> None:
        self._definitions = definitions
        self.in_part = in_part
        self._handled = _HANDLED | (_HANDLED_IN_PART if in_part else frozenset())
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
        if OPPOSITE in schema:
            return schema[OPPOSITE]
        if NARROWED in schema:
            raise Unservable("a schema that can't be said in full can't be excluded")
        kinds = kinds_of(within, self._definitions)
        said = [
            self._other_types(schema, within, kinds),
            self._other_values(schema, within, kinds),
            self._combined(schema, within, lax),
            outside(schema, kinds),
        ]
        if "string" in kinds and "pattern" in schema:
            said.append(other_texts(schema["pattern"]))
        if "object" in kinds:
            said += [self._properties(schema, within, lax), self._counts(schema, within)]
        if self.in_part:
            said += self._parts(schema, within, kinds)
        options: list[Schema] = []
        for each in said:
            try:
                options += each
            except Unservable:
                if not lax:
                    raise
        if "oneOf" in schema and not lax:
            raise Unservable("the negation of 'oneOf' is not supported")
        for name in schema.keys() - self._handled:
            if ABOUT.get(name) in kinds and not _says_nothing(schema[name]) and not lax:
                raise Unservable(f"what fails {name!r} can't be described")
        return any_of(options)

    def _parts(
        self, schema: dict[str, Any], within: Any, kinds: frozenset[str]
    ) -> Iterator[Iterator[Schema]]:
        if "string" in kinds and "format" in schema:
            yield other_formats(schema["format"])
        if "number" in kinds and "multipleOf" in schema:
            yield no_multiples(schema["multipleOf"], within)
        if "object" in kinds:
            yield self._others(schema, within)
        if "array" in kinds:
            yield self._items(schema, within)

    def _other_types(
        self, schema: dict[str, Any], within: Any, kinds: frozenset[str]
    ) -> Iterator[Schema]:
        if "type" not in schema:
            return
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        others = [kind for kind in TYPES if kind in kinds and kind not in types]
        if "integer" in types and "number" in others:
            others.remove("number")
        if others:
            yield {"type": others}
        if "integer" in types and "number" not in types and "number" in kinds:
            if not self.in_part:
                raise Unservable("the type 'number without integer' is not supported")
            yield from no_multiples(1, within)

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
                yield self._except(kind, [each for each in values if type_of(each) == kind])

    def _except(self, kind: str, values: list[Any]) -> Schema:
        """A schema of all values of a type but these."""
        if kind in ("array", "object") and any(values) and not self.in_part:
            raise Unservable(f"excluding a non-empty {kind} is not supported")
        if kind == "array":
            return all_of([{"type": kind}, *(self._other_array(each) for each in values)])
        if kind == "object":
            return all_of([{"type": kind}, *(self._other_object(each) for each in values)])
        return any_of(list(except_scalars(kind, values)))

    def _other_array(self, value: list[Any]) -> Schema:
        options: list[Schema] = [{"type": "array", "minItems": len(value) + 1}]
        if value:
            options.append({"type": "array", "maxItems": len(value) - 1})
        options += [_at(place, self.of({"const": each})) for place, each in enumerate(value)]
        return any_of(options)

    def _other_object(self, value: dict[str, Any]) -> Schema:
        names = list(value)
        options: list[Schema] = [part_of_object(properties={name: False}) for name in names]
        for name, each in value.items():
            properties = dict.fromkeys(names, True) | {name: self.of({"const": each})}
            options.append(part_of_object(properties=properties, required=[name]))
        more = {"required": names} if names else {}
        options.append(part_of_object(**more, minProperties=len(names) + 1))
        return any_of(options)

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

    def _counts(self, schema: dict[str, Any], within: Any) -> Iterator[Schema]:
        least, most = schema.get("minProperties", 0), schema.get("maxProperties")
        if least == 1:
            yield {"const": {}}
        elif least:
            if not self.in_part:
                raise Unservable("the negation of 'minProperties' is not supported")
            yield part_of_object(maxProperties=least - 1)
        if most is None or not self.in_part:
            return
        if most == 0:
            yield part_of_object(minProperties=1)
        else:
            listed = list(_known(within, "properties"))
            names = [*listed, *(f"x{at}" for at in range(most + 1) if f"x{at}" not in listed)]
            yield part_of_object(required=names[: most + 1]) | in_part("maxProperties")

    def _others(self, schema: dict[str, Any], within: Any) -> Iterator[Schema]:
        """Objects with a property that a pattern is about, or nothing in particular, and that
        isn't as it should be: one whose name is known, or all of them."""
        patterns, known = schema.get("patternProperties", {}), _known(within, "properties")
        for pattern, each in patterns.items():
            if _says_nothing(each):
                continue
            names = [name for name in known if matched(pattern, name)] or [name_for(pattern)]
            for name in names[:MAX_NAMES]:
                made = self.of(each, known.get(name, True))
                yield _with(name, made) | in_part("patternProperties")
        rest = schema.get("additionalProperties", True)
        if _says_nothing(rest):
            return
        listed = schema.get("properties", {})
        all_wrong = False if patterns else self._none_but_others(listed, rest)
        yield all_wrong
        names = [
            name
            for name in known
            if name not in listed and not any(matched(pattern, name) for pattern in patterns)
        ]
        if not names and (name := name_but(listed, patterns)) is not None:
            names = [name]
        if not names and all_wrong is False:
            raise Unservable("what fails 'additionalProperties' can't be described")
        for name in names[:MAX_NAMES]:
            made = self.of(rest, known.get(name, True))
            yield _with(name, made) | in_part("additionalProperties")

    def _none_but_others(self, listed: dict[str, Any], rest: Any) -> Schema:
        """Objects of properties that aren't listed, at least one, each of which is wrong."""
        made = self.of(rest)
        if made is True and not listed:
            return part_of_object(minProperties=1)
        if made is False:
            return False
        absent = {"properties": dict.fromkeys(listed, False)} if listed else {}
        said = {"type": "object", **absent, "additionalProperties": made, "minProperties": 1}
        return said | in_part("additionalProperties")

    def _items(self, schema: dict[str, Any], within: Any) -> Iterator[Schema]:
        first = schema.get("prefixItems", [])
        for place, each in enumerate(first):
            yield _at(place, self.of(each, _item(within, place)))
        rest = schema.get("items", True)
        if _says_nothing(rest):
            return
        options: list[Schema] = []
        last = len(first) + MAX_PLACES
        for place in range(len(first), min(last, _known(within, "maxItems", last + 1))):
            item = _item(within, place)
            other = self.of(rest, item)
            kinds = kinds_of(item, self._definitions)
            if other is True or not kinds & kinds_of(rest, self._definitions):
                # That there is one is enough, and all others come after it.
                yield from options
                yield {"type": "array", "minItems": place + 1}
                return
            options.append(_at(place, other))
        for option in options:
            partly = _known(within, "maxItems", last + 1) > last
            yield option | in_part("items") if partly and isinstance(option, dict) else option


def _known(within: Any, name: str, default: Any = None) -> Any:
    """What a schema says by a keyword."""
    otherwise = {} if default is None else default
    return within.get(name, otherwise) if isinstance(within, dict) else otherwise


def _item(within: Any, place: int) -> Any:
    """Returns what is known of an array's item."""
    first = _known(within, "prefixItems", [])
    return first[place] if place < len(first) else _known(within, "items", True)


def _at(place: int, item: Schema) -> Schema:
    """Arrays with such an item."""
    if item is False:
        return False
    return {"type": "array", "prefixItems": [*[True] * place, item], "minItems": place + 1}


def _with(name: str, value: Schema) -> dict[str, Any]:
    """Objects with such a property."""
    return part_of_object(properties={name: value}, required=[name])


def _says_nothing(value: Any) -> bool:
    return value is True or value == {}
