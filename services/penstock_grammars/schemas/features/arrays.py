"""Keywords of arrays."""

from __future__ import annotations

import json
from itertools import permutations
from math import ceil, floor
from typing import Any

from penstock_grammars.schemas.combining import any_of
from penstock_grammars.schemas.features.interface import Context, Feature
from penstock_grammars.schemas.keywords import (
    NARROWED,
    TYPES,
    UNIQUE,
    Schema,
    Unservable,
)
from penstock_grammars.schemas.values import identity, listed, same

# `contains`: one of the first items, also of a longer array.

MAX_ITEMS = 16
_LONG = f"contains is supported for one of the first {MAX_ITEMS} items"


class Contains(Feature):
    keywords = ("contains", "minContains", "maxContains")

    def instead(self, node: dict[str, Any], context: Context) -> list[Schema]:
        within = context.plain(node)
        if "contains" not in node or "array" not in context.kinds(within):
            return []
        wanted, least, most = node["contains"], node.get("minContains", 1), node.get("maxContains")
        if wanted is True or wanted == {} or same(wanted, node.get("items")):
            options: list[Schema] = [_of_length(least, most)]
            if "prefixItems" in node and wanted not in (True, {}):
                raise Unservable("contains is not supported beside prefixItems of other schemas")
        elif most is not None or least > 1:
            raise Unservable("minContains over 1 and maxContains are not supported")
        elif least == 0:
            return []
        else:
            longest = _longest(node)
            options = _at_some_place(wanted, min(longest, MAX_ITEMS))
            if longest > MAX_ITEMS:
                made = any_of(context.or_of_other_type("array", within, options))
                return [made | {NARROWED: _LONG} if isinstance(made, dict) else made]
        return [any_of(context.or_of_other_type("array", within, options))]


def _of_length(least: int, most: int | None) -> dict[str, Any]:
    return {"type": "array", "minItems": least} | ({} if most is None else {"maxItems": most})


def _longest(node: dict[str, Any]) -> int:
    """Items that an array may have, and more than MAX_ITEMS where that isn't said."""
    bounds = [node["maxItems"]] if "maxItems" in node else []
    if node.get("items") is False:
        bounds.append(len(node.get("prefixItems", ())))
    return min(bounds, default=MAX_ITEMS + 1)


def _at_some_place(wanted: Any, longest: int) -> list[Schema]:
    return [
        {"type": "array", "prefixItems": [*[True] * at, wanted], "minItems": at + 1}
        for at in range(longest)
    ]


# `uniqueItems`: an array of a few values is one of those that there are; of others, the output is
# followed, where their items are no arrays or objects.

MAX_VALUES = 4
"""The values that items may be one of; 5 of them can stand in 326 orders."""
MAX_LISTED = 1024
_WRITTEN = (str, bool, int, type(None))
"""Values for which there is one text."""
_TOLD = "arrays without equal items are supported in part"


class UniqueItems(Feature):
    keywords = ("uniqueItems",)

    def instead(self, node: dict[str, Any], context: Context) -> list[Schema]:
        within = context.plain(node)
        if "array" not in context.kinds(within) or node.get("maxItems", 2) <= 1:
            return []
        if "prefixItems" not in node and node.get("items") is False:
            return []
        values = None
        if "prefixItems" not in node:
            values = _values(context.resolved(node.get("items", True)))
        if values is None or len(values) > MAX_VALUES:
            return _followed(node, values, context)
        least, most = node.get("minItems", 0), min(node.get("maxItems", len(values)), len(values))
        arrays = [
            list(chosen)
            for count in range(least, most + 1)
            for chosen in permutations(values, count)
        ]
        options: list[Schema] = [{"const": each} for each in arrays]
        return [any_of(context.or_of_other_type("array", within, options))]


def _followed(node: dict[str, Any], values: list[Any] | None, context: Context) -> list[Schema]:
    """A mark for the check that follows the output, which has to find out at an item's last
    character that it is another one's: of arrays and objects it would be too late then."""
    every = [*node.get("prefixItems", ()), node.get("items", True)]
    scalars = [kind for kind in TYPES if kind not in ("array", "object")]
    if not all(context.kinds(each) & {*scalars} or each is False for each in every):
        raise Unservable("uniqueItems is not supported for items that are arrays or objects")
    texts = None
    if values is not None and len(values) <= MAX_LISTED:
        if all(isinstance(each, _WRITTEN) for each in values):
            texts = [json.dumps(each, ensure_ascii=False) for each in values]
        if node.get("minItems", 0) > len(values):
            return [False]
    said: list[Schema] = [{UNIQUE: texts, NARROWED: _TOLD}]
    if any(context.kinds(each) & {"array", "object"} for each in every):
        if "prefixItems" in node:
            raise Unservable("uniqueItems is not supported for items that are arrays or objects")
        # Marked by itself: what fails only this is no array with equal items.
        said.append({"items": {"type": scalars}, NARROWED: _TOLD})
    return said


def _values(items: Any) -> list[Any] | None:
    found = listed(items)
    if found is None and isinstance(items, dict) and items.get("type") == "boolean":
        found = [False, True]
    if found is None and isinstance(items, dict) and items.keys() == _RANGE:
        low, high = ceil(items["minimum"]), floor(items["maximum"])
        if items["type"] == "integer" and high - low < MAX_LISTED:
            found = list(range(low, high + 1))
    return None if found is None else list({identity(value): value for value in found}.values())


_RANGE = {"type", "minimum", "maximum"}
