"""A schema's own keywords, checked, and in one way where drafts have several."""

from __future__ import annotations

from typing import Any

from penstock_worker.grammar_text.schemas import keywords
from penstock_worker.grammar_text.schemas.errors import Unservable
from penstock_worker.grammar_text.schemas.look_arounds import without_look_arounds

FORMATS = frozenset(
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
)
"""The formats that llguidance holds texts to. Others are annotations."""

_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNTS = (
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    *("minContains", "maxContains"),
)
_EXPECTED: dict[str, tuple[type, ...]] = {
    **dict.fromkeys((*keywords.MAPS, "dependencies", "dependentRequired"), (dict,)),
    **dict.fromkeys((*keywords.LISTS, "enum", "required"), (list,)),
    **dict.fromkeys(("pattern", "format", "$ref"), (str,)),
    **dict.fromkeys(_NUMBERS, (int, float)),
    **dict.fromkeys(_COUNTS, (int, float)),
    "uniqueItems": (bool,),
}
_WORDS: dict[type, str] = {dict: "an object", list: "an array", str: "a string", int: "a number"}


def normalised(raw: dict[str, Any], draft: int) -> dict[str, Any]:
    """Without annotations; `prefixItems` and numbers as bounds, as in 2020-12.

    Raises Unservable.
    """
    node = {name: raw[name] for name in raw if keywords.is_constraint(name, draft)}
    if draft <= 7 and "$ref" in node:  # Until then nothing counts beside it.
        node = {"$ref": node["$ref"]}
    _exclusive_bounds(node)
    for name, value in node.items():
        _check(name, value)
        if name in _COUNTS:
            node[name] = int(value)
    without_look_arounds(node)
    _items(node, draft)
    _not_not(node, draft)
    _conditionals(node, draft)
    if node.get("format") not in FORMATS:
        node.pop("format", None)
    if node.get("uniqueItems") is False:
        del node["uniqueItems"]
    _references(node)
    return node


def _check(name: str, value: Any) -> None:
    expected = _EXPECTED.get(name)
    if expected is None:
        return
    if name == "uniqueItems":
        right = isinstance(value, bool)
    else:
        right = isinstance(value, expected) and not isinstance(value, bool)
    if not right:
        word = _WORDS.get(expected[0], "a boolean")
        raise Unservable(f"{name} must be {word}, not {str(value)[:100]}")
    if name in _COUNTS and (value < 0 or not float(value).is_integer()):
        raise Unservable(f"{name} is {value}; it must be 0 or a greater integer")
    if name == "required" and not all(isinstance(each, str) for each in value):
        raise Unservable("required must be an array of strings")
    if name in ("anyOf", "oneOf") and not value:
        raise Unservable(f"{name} must be an array of at least one schema")


def _exclusive_bounds(node: dict[str, Any]) -> None:
    """Turns booleans, which exclusive bounds are until draft 4, into numbers."""
    for name, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if node.get(name) is True and bound in node:
            node[name] = node.pop(bound)
        elif isinstance(node.get(name), bool):
            del node[name]


def _items(node: dict[str, Any], draft: int) -> None:
    """Turns a list of items into prefixItems, which it is called since 2020-12."""
    rest = node.pop("additionalItems", None)
    if isinstance(node.get("items"), list):
        if "prefixItems" in node:
            raise Unservable("items can't be an array together with prefixItems")
        node["prefixItems"] = node.pop("items")
        if rest is not None:
            node["items"] = rest


def _not_not(node: dict[str, Any], draft: int) -> None:
    """Twice is not at all."""
    once = node.get("not")
    if not isinstance(once, dict) or not isinstance(once.get("not"), dict):
        return
    if [name for name in once if keywords.is_constraint(name, draft)] == ["not"]:
        del node["not"]
        node["allOf"] = [*node.get("allOf", ()), once["not"]]


CONDITIONALS = "conditionals"
_CONDITIONAL = ("if", "then", "else")


def _conditionals(node: dict[str, Any], draft: int) -> None:
    """Brings all conditions of a schema and of the parts of its allOf together, by place."""
    found: dict[str, dict[str, Any]] = {}
    own = {name: node.pop(name) for name in _CONDITIONAL if name in node}
    if "if" in own:
        found[""] = own
    rest = list(node.get("allOf", ()))
    for at, part in enumerate(rest):
        if isinstance(part, dict) and "if" in part:
            said = [name for name in part if keywords.is_constraint(name, draft)]
            if set(said) <= set(_CONDITIONAL):
                found[f"/allOf/{at}"] = {name: part[name] for name in said}
                rest[at] = True
    if found:
        node[CONDITIONALS] = found
    if "allOf" in node:
        node["allOf"] = rest


def _references(node: dict[str, Any]) -> None:
    for name in ("$recursiveRef", "$dynamicRef"):
        if name in node:
            raise Unservable(f"{name} is not supported; a plain $ref is")
