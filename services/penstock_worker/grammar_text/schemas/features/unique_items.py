"""`uniqueItems`: an array of a few values is one of those that there are; of others, the output is
followed, where their items are no arrays or objects."""

from __future__ import annotations

import json
from itertools import permutations
from math import ceil, floor
from typing import Any

from penstock_worker.grammar_text.schemas.combining import any_of
from penstock_worker.grammar_text.schemas.errors import Unservable
from penstock_worker.grammar_text.schemas.features.interface import Context, Feature
from penstock_worker.grammar_text.schemas.keywords import NARROWED, TYPES, UNIQUE, Schema
from penstock_worker.grammar_text.schemas.values import identity, listed

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
    """A mark for whoever follows the output, who has to find out at an item's last character that
    it is another one's: of arrays and objects it would be too late then."""
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
        said.append({"items": {"type": scalars}})
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
