"""`uniqueItems`: where an array can't have two, or its items are a few values."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from penstock_worker.grammar_text.schemas.combining import any_of
from penstock_worker.grammar_text.schemas.errors import Unservable
from penstock_worker.grammar_text.schemas.features.interface import Context, Feature
from penstock_worker.grammar_text.schemas.keywords import Schema
from penstock_worker.grammar_text.schemas.values import identity, listed

MAX_VALUES = 4
"""5 of them can stand in 326 orders."""


class UniqueItems(Feature):
    keywords = ("uniqueItems",)

    def instead(self, node: dict[str, Any], context: Context) -> list[Schema]:
        within = context.plain(node)
        if "array" not in context.kinds(within) or node.get("maxItems", 2) <= 1:
            return []
        if "prefixItems" not in node and node.get("items") is False:
            return []
        values = _values(context.resolved(node.get("items", True)))
        if "prefixItems" in node or values is None or len(values) > MAX_VALUES:
            raise Unservable(
                "uniqueItems needs at most one item (maxItems), or items that are one of at most "
                f"{MAX_VALUES} values (enum)"
            )
        least, most = node.get("minItems", 0), min(node.get("maxItems", len(values)), len(values))
        arrays = [
            list(chosen)
            for count in range(least, most + 1)
            for chosen in permutations(values, count)
        ]
        options: list[Schema] = [{"const": each} for each in arrays]
        return [any_of(context.or_of_other_type("array", within, options))]


def _values(items: Any) -> list[Any] | None:
    found = listed(items)
    if found is None and isinstance(items, dict) and items.get("type") == "boolean":
        found = [False, True]
    return None if found is None else list({identity(value): value for value in found}.values())
