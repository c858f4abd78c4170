"""`unevaluatedProperties` and `unevaluatedItems`, where nothing else evaluates any."""

from __future__ import annotations

from typing import Any

from penstock_worker.grammar_text.schemas.errors import Unservable
from penstock_worker.grammar_text.schemas.features.interface import Context, Feature
from penstock_worker.grammar_text.schemas.keywords import Schema

_COMBINING = frozenset(
    [
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "conditionals",
        "$ref",
        "dependencies",
        "dependentSchemas",
        "contains",
    ]
)


class Unevaluated(Feature):
    keywords = ("unevaluatedProperties", "unevaluatedItems")

    def instead(self, node: dict[str, Any], context: Context) -> list[Schema]:
        said: list[Schema] = []
        for keyword, plain, known in (
            ("unevaluatedProperties", "additionalProperties", ("properties", "patternProperties")),
            ("unevaluatedItems", "items", ("prefixItems",)),
        ):
            rest = node.get(keyword, True)
            if rest is True or rest == {} or plain in node:
                continue
            if _COMBINING & node.keys():
                raise Unservable(f"{keyword} is supported only if nothing else evaluates any")
            parts: dict[str, Any] = {plain: rest}
            for name in known:
                if name in node:
                    each = node[name]
                    parts[name] = (
                        [True] * len(each) if isinstance(each, list) else dict.fromkeys(each, True)
                    )
            said.append(parts)
        return said
