"""A batch as Anthropic's API shows it, and its results, made from the files that its runner
wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from penstock_dialects.anthropic.errors import MessageError, MessageErrorReply
from penstock_dialects.anthropic.models import moment
from penstock_gateway.batches.in_process import LineError, LineResult
from penstock_gateway.batches.request import LINE
from penstock_gateway.storage.contents import Contents
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
        # Only a path: a server doesn't know which scheme and host a proxy's clients see.
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
    counted = {"succeeded": counts.completed, "errored": counts.failed}
    left = counts.total - counts.completed - counts.failed
    if left > 0:
        kind = UNANSWERED.get(status, "errored")
        counted[kind] = counted.get(kind, 0) + left
    return MessageBatchCounts(**counted)


def _status(status: BatchStatus) -> str:
    if status in ENDED:
        return "ended"
    return "canceling" if status == "cancelling" else "in_progress"


def _moment(seconds: int | None) -> str | None:
    return None if seconds is None else moment(seconds)


BLOCK = 1 << 16
"""Bytes that are sent in one piece, and more only where a result has more."""

_WRITTEN = msgspec.json.Decoder(LineResult)


class Succeeded(msgspec.Struct, frozen=True, tag_field="type", tag="succeeded"):
    """message: as /v1/messages answered."""

    message: msgspec.Raw


class Errored(msgspec.Struct, frozen=True, tag_field="type", tag="errored"):
    """error: the whole body of the error."""

    error: msgspec.Raw


class Canceled(msgspec.Struct, frozen=True, tag_field="type", tag="canceled"):
    """Never asked: the batch was canceled first."""


class Expired(msgspec.Struct, frozen=True, tag_field="type", tag="expired"):
    """The result of a request that was not answered in time."""


class MessageResult(msgspec.Struct, frozen=True):
    """The result of one line of a batch."""

    custom_id: str
    result: Succeeded | Errored | Canceled | Expired


def result_blocks(contents: Contents, record: BatchRecord) -> Iterator[bytes]:
    """The results of a batch that has ended, as JSON Lines in pieces. Waits for disks and networks,
    and raises OSError: for a thread."""
    block = bytearray()
    for result in _results(contents, record):
        block += msgspec.json.encode(result) + b"\n"
        if len(block) >= BLOCK:
            yield bytes(block)
            block.clear()
    yield bytes(block)


def _results(contents: Contents, record: BatchRecord) -> Iterator[MessageResult]:
    """Results of requests that were answered, that failed, and that weren't answered, each in the
    order of the requests."""
    answered: set[str] = set()
    for file_id in (record.output_file_id, record.error_file_id):
        for line in () if file_id is None else _lines(contents, file_id):
            written = _WRITTEN.decode(line)
            answered.add(written.custom_id)
            yield _result(written)
    if record.status not in UNANSWERED:
        return
    left = _unanswered(record)
    for line in _lines(contents, record.input_file_id):
        custom_id = LINE.decode(line).custom_id
        if custom_id not in answered:
            yield MessageResult(custom_id, left)


def _lines(contents: Contents, file_id: str) -> Iterable[bytes]:
    with contents.open(file_id) as file:
        yield from file


def _result(written: LineResult) -> MessageResult:
    response = written.response
    if response is None:
        failure = written.error or LineError("", "internal error")
        kind = "authentication_error" if failure.code == "invalid_api_key" else "api_error"
        return MessageResult(written.custom_id, _errored(kind, failure.message))
    if response.status_code == 200:
        return MessageResult(written.custom_id, Succeeded(response.body))
    return MessageResult(written.custom_id, Errored(response.body))


def _unanswered(record: BatchRecord) -> Errored | Canceled | Expired:
    """The result of requests that the batch ended without."""
    match record.status:
        case "cancelled":
            return Canceled()
        case "expired":
            return Expired()
    errors = record.errors.data if record.errors is not None else []
    return _errored("api_error", errors[0].message if errors else "the batch failed")


def _errored(kind: str, message: str) -> Errored:
    reply = MessageErrorReply(error=MessageError(kind, message))
    return Errored(msgspec.Raw(msgspec.json.encode(reply)))
