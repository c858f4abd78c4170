"""`contains`: one of the first items, also of a longer array."""

from __future__ import annotations

from typing import Any

from penstock_worker.grammar_text.schemas.combining import any_of
from penstock_worker.grammar_text.schemas.errors import Unservable
from penstock_worker.grammar_text.schemas.features.interface import Context, Feature
from penstock_worker.grammar_text.schemas.keywords import NARROWED, Schema
from penstock_worker.grammar_text.schemas.values import same

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
