"""`if`, `then` and `else`: what holds with the condition, or else without it."""

from __future__ import annotations

from typing import Any

from penstock_worker.grammar_text.schemas.errors import Unservable
from penstock_worker.grammar_text.schemas.features.interface import Context, Feature, plain
from penstock_worker.grammar_text.schemas.keywords import Schema, all_of, any_of


class Conditionals(Feature):
    keywords = ("if", "then", "else")

    def instead(self, node: dict[str, Any], context: Context) -> list[Schema]:
        if "if" not in node:
            return []
        condition, then, other = node["if"], node.get("then", True), node.get("else", True)
        if (then is True or then == {}) and (other is True or other == {}):
            return []
        within = plain(node)
        try:
            fails = context.negation.of(condition, within)
        except Unservable as error:
            raise Unservable(f"this if is not supported: {error}") from None
        return [any_of([all_of([condition, then]), all_of([fails, other])])]
