"""Files, batches and conversations as OpenAI's API shows them, and lists of them in pages
(?limit=…&after=ID). Times are Unix seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Literal, TypeVar

import msgspec

Order = Literal["asc", "desc"]
BatchStatus = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
ENDED: tuple[BatchStatus, ...] = ("failed", "completed", "expired", "cancelled")
MESSAGES = "/v1/messages"
"""The endpoint of Anthropic's batches, which OpenAI's API doesn't show."""


class FileRecord(msgspec.Struct, frozen=True, tag_field="object", tag="file", kw_only=True):
    """bytes: its length."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    expires_at: int | None = None


class BatchError(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a batch's file.  line: of the file, from 1."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchErrors(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    """The first ones."""

    data: list[BatchError]


class RequestCounts(msgspec.Struct, frozen=True):
    """Lines of a batch: all, those answered with 200, those answered with an error."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchRecord(msgspec.Struct, frozen=True, tag_field="object", tag="batch", kw_only=True):
    """output_file_id: of the answers.  error_file_id: of the errors, and of the lines that an
    expired batch never came to."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: BatchStatus
    created_at: int
    expires_at: int
    errors: BatchErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    metadata: dict[str, str] | None = None


class ConversationRecord(
    msgspec.Struct, frozen=True, tag_field="object", tag="conversation", kw_only=True
):
    """metadata: the client's own."""

    id: str
    created_at: int
    metadata: dict[str, str] = {}


class ConversationItem(msgspec.Struct, frozen=True, kw_only=True):
    """What a conversation holds.  item: JSON, with that id.  size: its bytes."""

    id: str
    item: str
    size: int


class BatchWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a runner needs to know of a batch beside its record.  owner: a tenant.
    key_digest: SHA-256 of the API key that made it, in hex; empty where there are no keys.
    keep_seconds: how long its results are kept."""

    record: BatchRecord
    owner: str
    key_digest: str
    keep_seconds: int


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
