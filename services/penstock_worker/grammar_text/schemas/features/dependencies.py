"""`dependencies`, `dependentRequired` and `dependentSchemas`: a property is absent, or it is there
with what it needs."""

from __future__ import annotations

from typing import Any

from penstock_worker.grammar_text.schemas.combining import all_of, any_of, part_of_object
from penstock_worker.grammar_text.schemas.errors import Unservable
from penstock_worker.grammar_text.schemas.features.interface import Context, Feature
from penstock_worker.grammar_text.schemas.keywords import Schema

MAX_NAMES = 8
"""Properties that need something: each doubles the ways to go on."""


class Dependencies(Feature):
    keywords = ("dependencies", "dependentRequired", "dependentSchemas")

    def instead(self, node: dict[str, Any], context: Context) -> list[Schema]:
        within = context.plain(node)
        if "object" not in context.kinds(within):
            return []
        required, properties = within.get("required", ()), within.get("properties", {})
        needs: dict[str, list[Schema]] = {}
        for keyword in self.keywords:
            for name, needed in node.get(keyword, {}).items():
                needs.setdefault(name, []).append(_schema(needed))
        said, choices = [], 0
        for name, needed in needs.items():
            schema = all_of(needed)
            if schema is True or properties.get(name, True) is False:
                continue
            if name in required:
                options: list[Schema] = [schema]
            else:
                choices += 1
                there = all_of([part_of_object(required=[name]), schema])
                options = [part_of_object(properties={name: False}), there]
            said.append(any_of(context.or_of_other_type("object", within, options)))
        if choices > MAX_NAMES:
            raise Unservable(
                f"{choices} optional properties have dependencies; at most {MAX_NAMES} are allowed"
            )
        return said


def _schema(needed: Any) -> Schema:
    if not isinstance(needed, list):
        return needed
    if not all(isinstance(name, str) for name in needed):
        raise Unservable("dependencies must name properties")
    return part_of_object(required=needed) if needed else True
