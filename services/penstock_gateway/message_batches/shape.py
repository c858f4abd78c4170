"""A batch as Anthropic's API shows it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock_gateway.anthropic.models import moment
from penstock_gateway.storage.records import ENDED, BatchRecord, BatchStatus, RequestCounts

PATH = "/v1/messages/batches"
UNANSWERED: dict[BatchStatus, str] = {
    "cancelled": "canceled",
    "expired": "expired",
    "failed": "errored",
}
"""The result of requests without an answer, by how their batch ended."""


class MessageBatchCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Requests, by what became of them. Until the batch has ended, all are being processed."""

    processing: int = 0
    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0


class MessageBatch(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message_batch"
):
    """processing_status: in_progress, canceling or ended.  Times are RFC 3339.  results_url: the
    path of the results at this server, once there are any.  archived_at: since when they are
    gone."""

    id: str
    processing_status: str
    request_counts: MessageBatchCounts
    created_at: str
    expires_at: str
    ended_at: str | None = None
    cancel_initiated_at: str | None = None
    archived_at: str | None = None
    results_url: str | None = None


class MessageBatchPage(msgspec.Struct, frozen=True, kw_only=True):
    """The latest first.  has_more: there are others in the direction of the request."""

    data: list[MessageBatch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class MessageBatchDeleted(
    msgspec.Struct, frozen=True, tag_field="type", tag="message_batch_deleted"
):
    id: str


def shown(record: BatchRecord, keep_seconds: int, now: float) -> MessageBatch:
    """keep_seconds: how long results are kept.  now: Unix time."""
    ended = ended_at(record)
    gone = ended is not None and ended + keep_seconds <= now
    return MessageBatch(
        id=record.id,
        processing_status=_status(record.status),
        request_counts=counts_of(record.status, record.request_counts),
        created_at=moment(record.created_at),
        expires_at=moment(record.expires_at),
        ended_at=None if ended is None else moment(ended),
        cancel_initiated_at=_moment(record.cancelling_at),
        archived_at=moment(ended + keep_seconds) if ended is not None and gone else None,
        # Only a path: which scheme and host a client sees, a server behind a proxy doesn't know.
        results_url=f"{PATH}/{record.id}/results" if ended is not None and not gone else None,
    )


def page_of(batches: Sequence[MessageBatch], *, has_more: bool) -> MessageBatchPage:
    """The page that holds these."""
    return MessageBatchPage(
        data=list(batches),
        first_id=batches[0].id if batches else None,
        last_id=batches[-1].id if batches else None,
        has_more=has_more,
    )


def ended_at(record: BatchRecord) -> int | None:
    """Unix time; None: it hasn't ended."""
    if record.status not in ENDED:
        return None
    return getattr(record, f"{record.status}_at") or record.created_at


def counts_of(status: BatchStatus, counts: RequestCounts) -> MessageBatchCounts:
    """Counts of all of a batch's requests."""
    if status not in ENDED:
        return MessageBatchCounts(processing=counts.total)
    told = {"succeeded": counts.completed, "errored": counts.failed}
    left = counts.total - counts.completed - counts.failed
    if left > 0:
        kind = UNANSWERED.get(status, "errored")
        told[kind] = told.get(kind, 0) + left
    return MessageBatchCounts(**told)


def _status(status: BatchStatus) -> str:
    if status in ENDED:
        return "ended"
    return "canceling" if status == "cancelling" else "in_progress"


def _moment(seconds: int | None) -> str | None:
    return None if seconds is None else moment(seconds)
