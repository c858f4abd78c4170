"""Keywords whose branches hold or don't."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock_grammars.schemas.combining import all_of, any_of, part_of_object
from penstock_grammars.schemas.features.interface import Context, Feature
from penstock_grammars.schemas.keywords import (
    ABOUT,
    NARROWED,
    OPPOSITE,
    Schema,
    Unservable,
    is_narrowed,
)
from penstock_grammars.schemas.normal_form import CONDITIONALS
from penstock_grammars.schemas.values import identity, listed

# `if`, `then` and `else`: what holds with the condition, or else without it.
#
# Several conditions that can't hold at once, such as the values of one property, make one choice
# between them; others make a choice each, and the ways through all of them multiply.


@dataclass(frozen=True, slots=True)
class _Conditional:
    condition: Schema
    then: Schema
    other: Schema


class Conditionals(Feature):
    keywords = (CONDITIONALS,)

    def instead(self, node: dict[str, Any], context: Context) -> list[Schema]:
        within = context.plain(node)
        all_said = [
            _Conditional(each["if"], each.get("then", True), each.get("else", True))
            for each in node[CONDITIONALS]
        ]
        said = [each for each in all_said if not (_any(each.then) and _any(each.other))]
        name = _one_optional(said, within, context)
        if name is not None:
            # Without the property all conditions hold; with it they may rule one another out.
            absent = part_of_object(properties={name: False})
            there = part_of_object(required=[name])
            known = within | {"required": [*within.get("required", ()), name]}
            choices = [_choice(group, known, context) for group in _groups(said, known, context)]
            consequences = [each.then for each in said]
            return [any_of([all_of([absent, *consequences]), all_of([there, *choices])])]
        return [_choice(group, within, context) for group in _groups(said, within, context)]


def _any(schema: Schema) -> bool:
    return schema is True or schema == {}


def _one_optional(said: list[_Conditional], within: dict[str, Any], context: Context) -> str | None:
    """The property that all conditions are about, where it may be absent and they hold then."""
    if len(said) < 2 or context.kinds(within) != {"object"}:
        return None
    names = set()
    for each in said:
        if not isinstance(each.condition, dict) or each.condition.keys() - {"properties", "type"}:
            return None
        names |= each.condition.get("properties", {}).keys()
    if len(names) != 1 or names & set(within.get("required", ())):
        return None
    return str(names.pop())


def _groups(
    said: list[_Conditional], within: dict[str, Any], context: Context
) -> list[list[_Conditional]]:
    """Returns groups of conditionals in each of which no two conditions hold at once."""
    groups: list[list[_Conditional]] = []
    for each in said:
        given = all_of([within, each.condition])
        for group in groups:
            if all(context.disjointness.holds(given, other.condition) for other in group):
                group.append(each)
                break
        else:
            groups.append([each])
    return groups


def _choice(group: list[_Conditional], within: dict[str, Any], context: Context) -> Schema:
    try:
        none = [context.negation.of(each.condition, within) for each in group]
    except Unservable as error:
        raise Unservable(f"this if is not supported: {error}") from None
    options = [
        all_of([each.condition, each.then, *(other.other for other in group if other is not each)])
        for each in group
    ]
    return any_of([*options, all_of([*none, *(each.other for each in group)])])


# `not`.


class Negations(Feature):
    keywords = ("not",)

    def instead(self, node: dict[str, Any], context: Context) -> list[Schema]:
        within = context.plain(node)
        try:
            made = context.negation.of(node["not"], within)
        except Unservable as error:
            if context.leave_one_of:  # The next attempt may say all of it.
                raise
            made = context.negation.of(node["not"], within, lax=True)
            if not isinstance(made, dict):
                raise Unservable(f"this not is not supported: {error}") from None
            return [{NARROWED: f"this not is not supported: {error}"} | made]
        if (
            context.negation.in_part
            and isinstance(made, dict)
            and is_narrowed(made, context.definitions)
        ):
            made = {NARROWED: _IN_PART, OPPOSITE: node["not"]} | made
        return [made]


_IN_PART = "this not is not supported: all that fails it can't be described"


# `oneOf`: any of its branches, where no two can hold at once; else each without the others.


class OneOf(Feature):
    keywords = ("oneOf",)

    def instead(self, node: dict[str, Any], context: Context) -> list[Schema]:
        branches, within = node["oneOf"], context.plain(node)
        constants = _constants(branches)
        if constants is not None:
            return [{"enum": constants} if constants else False]
        kinds = _kinds(branches, within, context)
        if kinds < context.kinds(within):
            if not kinds:
                return [False]
            typed = {"type": sorted(kinds) if len(kinds) > 1 else min(kinds)}
            return [typed, *self.instead(node | typed, context)]
        overlapping = _overlaps(branches, within, context)
        if context.leave_one_of and any(overlapping):
            if any(is_narrowed(each, context.definitions) for each in branches):
                raise Unservable(
                    "of a branch that is served in part, nobody can say what it excludes"
                )
            return [{"oneOf": branches}]
        options = []
        for at, branch in enumerate(branches):
            rivals = overlapping[at]
            options.append(all_of([branch, *(self._without(r, at, node, context) for r in rivals)]))
        return [any_of(options)]

    # Where the opposite of a rival can't be said in full, a part of it will do, as that a property
    # is missing which the rival requires: fewer documents, all of them valid.
    def _without(self, rival: int, at: int, node: dict[str, Any], context: Context) -> Schema:
        branches, within = node["oneOf"], context.plain(node)
        known = _known(within, context.resolved(branches[at]))
        try:
            return context.negation.of(branches[rival], known)
        except Unservable as error:
            reason = error
        first, second = sorted((rival, at))
        message = (
            f"branches {first} and {second} of oneOf may both match, and {reason}; use anyOf, "
            "or make them differ in type or in the constant of a required property"
        )
        ruled_out = context.negation.of(branches[rival], known, lax=True)
        if not isinstance(ruled_out, dict):
            raise Unservable(message)
        return {NARROWED: message} | ruled_out


def _known(within: dict[str, Any], branch: Any) -> dict[str, Any]:
    """Returns what is known of a document that both schemas admit."""
    if not isinstance(branch, dict):
        return within
    properties = within.get("properties", {}) | branch.get("properties", {})
    required = [*within.get("required", ()), *branch.get("required", ())]
    return within | branch | {"properties": properties, "required": required}


def _constants(branches: list[Any]) -> list[Any] | None:
    """The values that are in one branch only, where all branches list values."""
    found: dict[Any, tuple[int, Any]] = {}
    for branch in branches:
        if not isinstance(branch, dict) or branch.keys() - {"const", "enum", "type"}:
            return None
        values = listed(branch)
        if values is None:
            return None
        for key, value in {identity(value): value for value in values}.items():
            found[key] = (found[key][0] + 1 if key in found else 1, value)
    return [value for count, value in found.values() if count == 1]


def _kinds(branches: list[Any], within: dict[str, Any], context: Context) -> frozenset[str]:
    """The types of which a document can follow one branch only. Two that say nothing of a type
    both admit all of it."""
    return frozenset(
        kind
        for kind in context.kinds(within)
        if sum(_says_nothing(context.resolved(branch), kind) for branch in branches) < 2
    )


def _says_nothing(branch: Any, kind: str) -> bool:
    if not isinstance(branch, dict):
        return branch is True
    return all(ABOUT.get(name, kind) != kind for name in branch)


def _discriminated(branches: list[Any], within: dict[str, Any], context: Context) -> bool:
    """Whether each has values of its own for a required property."""
    if context.kinds(within) != {"object"}:
        within = {}
    objects = [context.resolved(branch) for branch in branches]
    if not all(isinstance(each, dict) for each in objects):
        return False
    if any(NARROWED in each for each in objects):
        return False
    if not within and any(context.kinds(each) != {"object"} for each in objects):
        return False
    first = objects[0].get("properties", {})
    return any(_tells_apart(name, objects, within) for name in first)


def _tells_apart(name: str, objects: list[dict[str, Any]], within: dict[str, Any]) -> bool:
    seen: set[Any] = set()
    for each in objects:
        if name not in (*each.get("required", ()), *within.get("required", ())):
            return False
        said = each.get("properties", {}).get(name)
        values = listed(said)
        if values is None or NARROWED in said:
            return False
        known = set(map(identity, values))
        if known & seen:
            return False
        seen |= known
    return True


def _overlaps(branches: list[Any], within: dict[str, Any], context: Context) -> list[list[int]]:
    """Returns for each branch those that may hold with it."""
    found: list[list[int]] = [[] for _ in branches]
    if _discriminated(branches, within, context):
        return found
    for at, branch in enumerate(branches):
        for other in range(at + 1, len(branches)):
            one, two = branch, branches[other]
            if within:
                one = all_of([within, one])
            if not context.disjointness.holds(one, two):
                found[at].append(other)
                found[other].append(at)
    return found
