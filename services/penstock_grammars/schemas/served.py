"""What llguidance is given for a schema: the schema rewritten, and options."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from math import inf
from typing import Any

from penstock_grammars.closed_objects import closed
from penstock_grammars.schemas import circles
from penstock_grammars.schemas.held_numbers import with_held_numbers
from penstock_grammars.schemas.keywords import (
    NARROWED,
    OPPOSITE,
    UNIQUE,
    Unservable,
    changed,
    inner,
    together,
)
from penstock_grammars.schemas.property_counts import counted
from penstock_grammars.schemas.rewriter import IN_FULL, Attempt, rewritten
from penstock_worker.grammar.errors import GrammarError

MAX_OPTIONAL = 240
"""Optional properties of one object. The library follows each in four ways at once, and gives up at
compile.MAX_ITEMS_IN_ROW: in the middle of an output, were it not refused here."""

SHORT_ESCAPES = 'nrbtf\\"'


def served(
    document: Any, complaint: Callable[[Any], str], *, followed: bool = True
) -> dict[str, Any]:
    """A schema for llguidance, with options for it in `x-guidance`.

    complaint: what llguidance says is wrong with a schema; empty where it would serve it.
    followed: whether an output will be followed for what only that can tell (UNIQUE).
    Raises GrammarError, which says where, and RecursionError.
    """
    for attempt in ATTEMPTS:
        try:
            made = _served(document, complaint, attempt)
        except GrammarError as error:
            refusal = error
        else:
            if not followed and _any(made, _is_unique):
                raise GrammarError(_NOT_FOLLOWED)
            if not _has_one_of(made) or _ONE_OF not in complaint(made):
                return made
    raise refusal


_NOT_FOLLOWED = (
    "in a structural tag, uniqueItems needs at most one item (maxItems), or items that are one of "
    "at most 4 values (enum)"
)


def _is_unique(node: dict[str, Any]) -> bool:
    return UNIQUE in node


ATTEMPTS = (Attempt(leave_one_of=True), IN_FULL, Attempt(in_part=True))
"""Attempts in order; the first that succeeds is served."""
_ONE_OF = "oneOf constraints are not supported"


def _served(document: Any, complaint: Callable[[Any], str], attempt: Attempt) -> dict[str, Any]:
    def impossible(schema: Any) -> bool:
        return complaint(_without_formats(schema)).startswith("Unsatisfiable schema")

    made = rewritten(document, impossible, attempt)
    if made is False:
        raise GrammarError("no output can match this schema: it is false, or equivalent to false")
    try:
        reasons = _reasons(made)
        made = changed(closed({} if made is True else made), _unmarked)
        definitions = made.get("$defs", {})
        made = changed(made, lambda node: _without_implied(node, definitions))
        made = changed(made, counted)
        made = changed(made, with_careful_patterns)
        made = changed(made, with_held_numbers)
        made = changed(made, with_careful_bounds)
        _check_optional(made)
        if "$defs" in made and complaint(made).startswith(circles.COMPLAINT):
            made = circles.unrolled(made)
    except Unservable as error:
        raise GrammarError(str(error)) from None
    if reasons and impossible(made):
        raise GrammarError(reasons[0])  # What is left of it has no document.
    options: dict[str, Any] = {"whitespace_pattern": whitespace(made)}
    if _names_may_be_escaped(made) or _any(made, _is_unique):
        options["json_allowed_escapes"] = SHORT_ESCAPES
    return made | {"x-guidance": options}


def _reasons(schema: Any) -> list[str]:
    """Why parts of it are served in part."""
    found: list[str] = []

    def look(node: dict[str, Any]) -> bool:
        if NARROWED in node:
            found.append(node[NARROWED])
        return False

    _any(schema, look)
    return found


def _unmarked(node: dict[str, Any]) -> dict[str, Any]:
    node.pop(NARROWED, None)
    node.pop(OPPOSITE, None)
    return node


def _without_implied(node: dict[str, Any], definitions: dict[str, Any]) -> Any:
    """Returns the schema without what its references imply: the library follows a circular
    reference only where it has no siblings."""
    if "allOf" in node:
        parts = [part for part in node["allOf"] if part is not True and part != {}]
        for part in [each for each in parts if _resolved(each, definitions).keys() == {"type"}]:
            kind = _resolved(part, definitions)["type"]
            if any(_is_of(each, kind, definitions) for each in parts if each is not part):
                parts = [each for each in parts if each is not part]
        if len(parts) == 1 and len(node) == 1:
            return parts[0]
        node = {name: each for name, each in node.items() if name != "allOf"}
        node |= {"allOf": parts} if parts else {}
    for alone in ("anyOf", "$ref"):
        if node.keys() == {"type", alone}:
            rest = {alone: node[alone]}
            return rest if _is_of(rest, node["type"], definitions) else node
    return node


def _resolved(schema: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    for _ in range(8):
        if not isinstance(schema, dict) or schema.keys() != {"$ref"}:
            break
        schema = definitions.get(schema["$ref"].rpartition("/")[2])
    return schema if isinstance(schema, dict) else {}


def _is_of(schema: Any, kind: Any, definitions: dict[str, Any], depth: int = 8) -> bool:
    """Whether all of its documents are of that type, as it says itself."""
    schema = _resolved(schema, definitions)
    if schema.get("type") == kind:
        return True
    options = schema.get("anyOf", ())
    return bool(options and depth) and all(
        _is_of(each, kind, definitions, depth - 1) for each in options
    )


def _check_optional(schema: dict[str, Any]) -> None:
    """Raises Unservable for an object with too many optional properties, listed in one place or
    several."""
    definitions = schema.get("$defs", {})

    def has_too_many(node: dict[str, Any]) -> bool:
        optional: set[str] = set()
        required: set[str] = set()
        for part in together(node, definitions):
            optional |= {
                name for name, each in part.get("properties", {}).items() if each is not False
            }
            required |= set(part.get("required", ()))
        if len(optional - required) > MAX_OPTIONAL:
            raise Unservable(
                f"an object has {len(optional - required)} optional properties; at most "
                f"{MAX_OPTIONAL} are allowed (any number may be required)"
            )
        return False

    _any(schema, has_too_many)


def _without_formats(schema: Any) -> Any:
    """A text of one format may be of another too, to whom formats are annotations."""
    return changed(
        schema, lambda node: {name: each for name, each in node.items() if name != "format"}
    )


def _has_one_of(schema: Any) -> bool:
    return _any(schema, lambda node: "oneOf" in node)


def _names_may_be_escaped(schema: Any) -> bool:
    """Whether an object has names of its own and others too. There llguidance would take a listed
    name that is written with escapes, `\\u0061`, for another."""
    return _any(schema, _has_names_and_others)


def _has_names_and_others(node: dict[str, Any]) -> bool:
    named = node.get("properties") or node.get("patternProperties") or node.get("required")
    return bool(named) and node.get("additionalProperties") is not False


def _any(schema: Any, test: Callable[[dict[str, Any]], bool]) -> bool:
    """Whether it holds for a schema within the schema."""
    stack = [schema]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            if test(node):
                return True
            stack += [each for _, each in inner(node)]
    return False


# How deep a schema's documents are, and the whitespace that they may be laid out with.

MAX_DEPTH = 64
"""Levels of a document that may be laid out, where the schema has no bound of its own."""
INDENT = 4
SPACES = 16
"""Whitespace of any kind. Bounded, as all is: small models go on with spaces for ever."""


def whitespace(schema: Any) -> str:
    """A regular expression for what may stand between the parts of a document: a little of
    anything, or a new line and the indentation of the deepest level."""
    levels = depth_of(schema)
    some = rf"[\x20\x0A\x0D\x09]{{0,{SPACES}}}"
    if INDENT * levels < SPACES:
        return some
    return rf"{some}|\x0D?\x0A(?:\x20{{0,{INDENT * levels}}}|\x09{{0,{levels}}})"


def depth_of(schema: Any) -> int:
    """Levels of arrays and objects, at most MAX_DEPTH."""
    definitions = schema.get("$defs", {}) if isinstance(schema, dict) else {}
    return _Depth(definitions).of(schema)


class _Depth:
    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._known: dict[str, int] = {}

    def of(self, schema: Any) -> int:
        if schema is False:
            return 0
        if not isinstance(schema, dict):
            return MAX_DEPTH
        several = [schema[name] for name in ("anyOf", "oneOf") if schema.get(name)]
        bounds = [max(map(self.of, options)) for options in several]
        bounds += [self.of(each) for each in schema.get("allOf", ())]
        if "$ref" in schema:
            bounds.append(self._reference(schema["$ref"]))
        bounds.append(self._own(schema))
        return min(bounds)

    def _own(self, schema: dict[str, Any]) -> int:
        if "const" in schema or "enum" in schema:
            values = schema.get("enum", [schema.get("const")])
            return max(map(_value_depth, values), default=0)
        types = schema.get("type", ("array", "object"))
        types = types if isinstance(types, list | tuple) else [types]
        deepest = 0
        if "object" in types:
            inner = [*schema.get("properties", {}).values()]
            inner += schema.get("patternProperties", {}).values()
            deepest = 1 + self._deepest([*inner, schema.get("additionalProperties", True)])
        if "array" in types:
            inner = [*schema.get("prefixItems", ()), schema.get("items", True)]
            deepest = max(deepest, 1 + self._deepest(inner))
        return min(deepest, MAX_DEPTH)

    def _deepest(self, schemas: list[Any]) -> int:
        return max(map(self.of, schemas))

    def _reference(self, name: str) -> int:
        if name not in self._known:
            self._known[name] = MAX_DEPTH  # What it is inside of itself.
            target = self._definitions.get(name.rpartition("/")[2], True)
            self._known[name] = self.of(target)
        return self._known[name]


def _value_depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_value_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_value_depth, value), default=0)
    return 0


# Regular expressions as llguidance can be trusted with them.
#
# Of a class that has all control characters but not the quotation mark or the backslash, such as
# `[^"]`, it takes the escapes of these two in a JSON string for members.  Without NUL it doesn't.

NO_NUL = r"\x00"


def with_careful_patterns(node: dict[str, Any]) -> dict[str, Any]:
    """A schema whose own patterns are careful."""
    if "pattern" in node:
        node["pattern"] = careful(node["pattern"])
    if "patternProperties" in node:
        node["patternProperties"] = {
            careful(pattern): each for pattern, each in node["patternProperties"].items()
        }
    return node


def careful(pattern: str) -> str:
    """The expression, with no negated class that has NUL."""
    made: list[str] = []
    at, within = 0, False
    while at < len(pattern):
        if pattern[at] == "\\":
            made.append(pattern[at : at + 2])
            at += 2
        elif not within and pattern.startswith("[", at):
            opening, at = _opening(pattern, at)
            made.append(opening)
            within = True
        else:
            within = within and pattern[at] != "]"
            made.append(pattern[at])
            at += 1
    return "".join(made)


def _opening(pattern: str, at: int) -> tuple[str, int]:
    """How the class that begins there begins, and where that ends. A bracket that comes first
    doesn't close it."""
    opening, after = ("[^" + NO_NUL, at + 2) if pattern.startswith("[^", at) else ("[", at + 1)
    if pattern.startswith("]", after):
        return opening + r"\]", after + 1
    return opening, after


# Bounds of numbers as llguidance can be trusted with them.
#
# Of numbers above 2 and up to 2.5 it takes 2 for one, and of those from -1.5 and below -1 it takes
# -1: where an integer is excluded, and the other bound is less than 1 away.

DIGITS = 15
"""The digits of a bound that the library sees; of more, it doesn't see the last."""
LEAST = 1e-16
"""The number that stands for the one next to zero."""


def with_careful_bounds(node: dict[str, Any]) -> dict[str, Any]:
    """A schema whose own bounds are careful."""
    low = max(
        (node[name] for name in ("minimum", "exclusiveMinimum") if name in node), default=-inf
    )
    high = min(
        (node[name] for name in ("maximum", "exclusiveMaximum") if name in node), default=inf
    )
    if not 0 < high - low < 1:
        return node
    if node.get("exclusiveMinimum") == low and float(low).is_integer():
        del node["exclusiveMinimum"]
        node["minimum"] = _next_to(low, 1)
    if node.get("exclusiveMaximum") == high and float(high).is_integer():
        del node["exclusiveMaximum"]
        node["maximum"] = _next_to(high, -1)
    return node


def _next_to(number: float, side: int) -> float:
    """The number above or below an integer that the library can tell from it."""
    if not number:
        return side * LEAST
    whole = Decimal(int(number))
    return float(whole + side * Decimal(10) ** (len(str(abs(int(number)))) - DIGITS))
