"""Lists in pages, as OpenAI's API has them: ?limit=…&after=ID."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from penstock_gateway.storage.records import BatchRecord, FileRecord

Item = TypeVar("Item", FileRecord, BatchRecord)

AFTER: tuple[str, dict[str, Any]] = (
    "The id of the last entry already received.",
    {"type": "string"},
)


def limit_schema(most: int, usual: int) -> tuple[str, dict[str, Any]]:
    """What OpenAPI says of `limit`."""
    bounds = {"type": "integer", "minimum": 1, "maximum": most, "default": usual}
    return "Maximum number of entries.", bounds


class Page(msgspec.Struct, Generic[Item], tag_field="object", tag="list", kw_only=True):
    """has_more: there are others after last_id."""

    data: list[Item]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


def page_of(found: Sequence[Item], limit: int) -> Page[Item]:
    """found: one more than `limit`, where there are more."""
    items = list(found[:limit])
    return Page(
        data=items,
        first_id=items[0].id if items else None,
        last_id=items[-1].id if items else None,
        has_more=len(found) > limit,
    )
