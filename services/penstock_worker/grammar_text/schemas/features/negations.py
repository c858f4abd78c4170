"""`not`."""

from __future__ import annotations

from typing import Any

from penstock_worker.grammar_text.schemas.errors import Unservable
from penstock_worker.grammar_text.schemas.features.interface import Context, Feature
from penstock_worker.grammar_text.schemas.keywords import Schema


class Negations(Feature):
    keywords = ("not",)

    def instead(self, node: dict[str, Any], context: Context) -> list[Schema]:
        try:
            return [context.negation.of(node["not"], context.plain(node))]
        except Unservable as error:
            raise Unservable(f"this not is not supported: {error}") from None
