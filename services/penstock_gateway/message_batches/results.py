"""The results of a batch of messages, made from the files that its runner wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from penstock_gateway.anthropic.errors import MessageError, MessageErrorReply
from penstock_gateway.batches.request import LINE
from penstock_gateway.batches.results import LineError, LineResult
from penstock_gateway.message_batches.shape import UNANSWERED
from penstock_gateway.storage.contents import Contents
from penstock_gateway.storage.records import BatchRecord

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
    """Not answered in time."""


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
        told = written.error or LineError("", "internal error")
        kind = "authentication_error" if told.code == "invalid_api_key" else "api_error"
        return MessageResult(written.custom_id, _errored(kind, told.message))
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
