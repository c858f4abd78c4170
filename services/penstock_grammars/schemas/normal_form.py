"""A schema's own keywords, checked, and in one way where drafts have several."""

from __future__ import annotations

import re
from typing import Any

from penstock_grammars.schemas import keywords
from penstock_grammars.schemas.keywords import NARROWED, Unservable

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
    if draft <= 7 and "$ref" in node:  # Until then its siblings are ignored.
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


# Patterns that look ahead, as patterns that don't: llguidance's expressions are regular.
#
# What stands at the beginning of a pattern, `^(?=A)(?!^[class]*$)B`, is several patterns that hold
# together.  Those that Pydantic 2.12 and 2.13 write for Decimal are known as a whole.

_LOOKS = re.compile(r"\(\?(?:=|!|<=|<!)")
_CLASS = r"\[\^?\]?(?:[^\]\\]|\\.)*\]"
_GROUP = re.compile(rf"(?s){_CLASS}")
_ONLY = re.compile(rf"(?s)\^?(?P<class>{_CLASS})\*\$")
"""Matches a pattern of any number of characters of one class, and nothing else."""

_SIGNED = re.escape(r"^(?!^[-+.]*$)[+-]?0*")
_DECIMAL = re.compile(_SIGNED + re.escape(r"\d*\.?\d*$"))
_PLACES = re.compile(_SIGNED + r"\\d\*\\\.\?\\d\{0,(\d{1,4})\}0\*\$")
_AHEAD = r"\(\?=\[\\d\.\]\{1,(?P<length>\d{1,5})\}0\*\$\)"
_DIGITS_AND_PLACES = re.compile(
    _SIGNED
    + r"\(\?:\\d\{0,(?P<whole>\d{1,4})\}\|"
    + _AHEAD
    + r"\\d\{0,(?P=whole)\}\\\.\\d\{0,(?P<places>\d{1,4})\}0\*\$\)\$?"
)
_DIGITS = re.compile(_SIGNED + r"\(\?:\\d\{0,(\d{1,4})\}\|" + _AHEAD + r"\\d\*\\\.\\d\*0\*\$\)\$?")
MOST_WIDTHS = 64
"""Most lengths, in digits, of a number's whole part that are distinguished; a longer one has no
places here."""


def without_look_arounds(node: dict[str, Any]) -> None:
    """Changes a schema whose pattern looks ahead. Raises Unservable where it can't be expressed
    otherwise."""
    pattern = node.get("pattern")
    if pattern is None or _LOOKS.search(pattern) is None:
        return
    decimal = _decimal(pattern)
    if decimal is not None:
        node["pattern"], node[NARROWED] = decimal, "a pattern that looks ahead is served in part"
        return
    parts = _parts(pattern)
    if parts is None:
        raise Unservable(
            f"pattern {pattern[:100]!r} looks ahead or behind, which is supported only at its "
            "beginning, as ^(?=…)… and ^(?![…]*$)…; write it without, or leave it out: the text "
            "is then bound by its other keywords, and can be checked once it is there"
        )
    node.pop("pattern")
    node["allOf"] = [*node.get("allOf", ()), *({"pattern": part} for part in parts)]


def _decimal(pattern: str) -> str | None:
    """A Decimal's pattern, of a text that ends where the number does."""
    if _DECIMAL.fullmatch(pattern):
        return r"^[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)$"
    if found := _PLACES.fullmatch(pattern):
        places = int(found[1])
        return rf"^[+-]?(?:[0-9]+(?:\.{_digits(0, places)}0*)?|{_fraction(places)})$"
    if found := _DIGITS_AND_PLACES.fullmatch(pattern):
        whole = int(found["whole"])
        # The length is that of all digits and the point.
        places = min(int(found["places"]), int(found["length"]) - 1)
        number = f"(?:0+|0*{_digits(1, whole)})" if whole else "0+"
        return rf"^[+-]?(?:{number}(?:\.{_digits(0, places)}0*)?|{_fraction(places)})$"
    if found := _DIGITS.fullmatch(pattern):
        most = int(found[1])
        widths = [
            rf"0*{_digits(width, width)}\.{_digits(0, most - width)}0*"
            for width in range(1, min(most, MOST_WIDTHS) + 1)
        ]
        number = f"0+|0*{_digits(1, most)}" if most else "0+"
        return (
            rf"^[+-]?(?:{'|'.join([number, *widths])}|0+\.{_digits(0, most)}0*|{_fraction(most)})$"
        )
    return None


def _digits(least: int, most: int) -> str:
    return f"[0-9]{{{least},{most}}}"


def _fraction(places: int) -> str:
    """A pattern of a number's decimals, without its whole part."""
    return rf"\.(?:{_digits(1, places)}0*|0+)" if places else r"\.0+"


def _parts(pattern: str) -> list[str] | None:
    """Patterns that hold together where the one does; None where there are none such."""
    if not pattern.startswith("^"):
        return None
    at, parts = 1, []
    while pattern.startswith(("(?=", "(?!"), at):
        end = _closing(pattern, at)
        if end is None:
            return None
        inner, negative = pattern[at + 3 : end], pattern[at + 2] == "!"
        if _LOOKS.search(inner):
            return None
        if not negative:
            parts.append(f"^(?:{inner})")
        else:
            only = _ONLY.fullmatch(inner)
            if only is None:
                return None
            parts.append(_other_than(only["class"]))
        at = end + 1
    rest = pattern[at:]
    if _LOOKS.search(rest) or _has_branches(rest):
        return None
    return [*parts, f"^{rest}"]


def _other_than(group: str) -> str:
    return f"[{group[2:]}" if group.startswith("[^") else f"[^{group[1:]}"


def _closing(pattern: str, at: int) -> int | None:
    """Index of the parenthesis that closes the group which begins at `at`; None if none does."""
    depth = 0
    for place, char in _plain(pattern, at):
        depth += (char == "(") - (char == ")")
        if not depth:
            return place
    return None


def _has_branches(pattern: str) -> bool:
    """Whether it has branches that aren't in a group."""
    depth = 0
    for _, char in _plain(pattern, 0):
        depth += (char == "(") - (char == ")")
        if char == "|" and not depth:
            return True
    return False


def _plain(pattern: str, at: int) -> list[tuple[int, str]]:
    """Characters with a meaning, and where: none that is escaped or in a class."""
    found = []
    while at < len(pattern):
        group = _GROUP.match(pattern, at)
        if pattern[at] == "\\":
            at += 2
        elif group is not None:
            at = group.end()
        else:
            found.append((at, pattern[at]))
            at += 1
    return found
