"""`not`."""

from __future__ import annotations

from typing import Any

from penstock_worker.grammar_text.schemas.errors import Unservable
from penstock_worker.grammar_text.schemas.features.interface import Context, Feature
from penstock_worker.grammar_text.schemas.keywords import NARROWED, Schema


class Negations(Feature):
    keywords = ("not",)

    def instead(self, node: dict[str, Any], context: Context) -> list[Schema]:
        within = context.plain(node)
        try:
            return [context.negation.of(node["not"], within)]
        except Unservable as error:
            if context.leave_one_of:  # The next attempt may say all of it.
                raise
            made = context.negation.of(node["not"], within, lax=True)
            if not isinstance(made, dict):
                raise Unservable(f"this not is not supported: {error}") from None
            return [{NARROWED: f"this not is not supported: {error}"} | made]
