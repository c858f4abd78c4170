"""What llguidance is given for a schema: the schema rewritten, and options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock_worker.grammar_text.closed_objects import closed
from penstock_worker.grammar_text.errors import GrammarError
from penstock_worker.grammar_text.schemas import circles
from penstock_worker.grammar_text.schemas.depth import whitespace
from penstock_worker.grammar_text.schemas.errors import Unservable
from penstock_worker.grammar_text.schemas.keywords import (
    NARROWED,
    OPPOSITE,
    UNIQUE,
    changed,
    inner,
    together,
)
from penstock_worker.grammar_text.schemas.number_bounds import with_careful_bounds
from penstock_worker.grammar_text.schemas.patterns import with_careful_patterns
from penstock_worker.grammar_text.schemas.property_counts import counted
from penstock_worker.grammar_text.schemas.rewriter import IN_FULL, Attempt, rewritten

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
"""What is tried, in this order; the first that succeeds is served."""
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
    """Returns the schema without what its references say anyway: the library follows a circular one
    only where nothing stands beside it."""
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
