"""`not`."""

from __future__ import annotations

from typing import Any

from penstock_worker.grammar_text.schemas.errors import Unservable
from penstock_worker.grammar_text.schemas.features.interface import Context, Feature
from penstock_worker.grammar_text.schemas.keywords import (
    NARROWED,
    OPPOSITE,
    Schema,
    is_narrowed,
)


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
