"""`if`, `then` and `else`: what holds with the condition, or else without it.

Several conditions that can't hold at once, such as the values of one property, make one choice
between them; others make a choice each, and the ways through all of them multiply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock_worker.grammar_text.schemas.combining import all_of, any_of, part_of_object
from penstock_worker.grammar_text.schemas.errors import Unservable
from penstock_worker.grammar_text.schemas.features.interface import Context, Feature
from penstock_worker.grammar_text.schemas.keywords import Schema
from penstock_worker.grammar_text.schemas.normal_form import CONDITIONALS


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
