"""The body of POST /v1/messages/batches, and the file that it becomes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from penstock.errors import InvalidRequest, TooLarge
from penstock_gateway.batches.request import BODY, BatchLine
from penstock_gateway.http.errors import clip
from penstock_gateway.storage.records import MESSAGES

_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SPACES = bytes.maketrans(b"\r\n", b"  ")


class MessageOfBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """params: the body of a message, which is checked when it is answered."""

    custom_id: str
    params: msgspec.Raw


class MessageBatchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A batch of messages as Anthropic has it."""

    requests: list[MessageOfBatch]


def lines_of(request: MessageBatchRequest, *, most: int, longest: int) -> Iterator[bytes]:
    """Lines of a batch's file.  most: requests.  longest: bytes of a line.  Raises
    InvalidRequest. For a thread: a body may be long."""
    requests = request.requests
    if not 0 < len(requests) <= most:
        raise InvalidRequest(
            f"requests has {len(requests)} entries; it must have 1 to {most}", param="requests"
        )
    seen: set[str] = set()
    for place, each in enumerate(requests):
        where = f"requests[{place}]"
        _check_id(each.custom_id, seen, f"{where}.custom_id")
        # A line break of JSON is blank space; within a text it is written otherwise.
        body = bytes(each.params).translate(_SPACES)
        _check_params(body, f"{where}.params")
        line = BatchLine(custom_id=each.custom_id, url=MESSAGES, body=msgspec.Raw(body))
        encoded = msgspec.json.encode(line)
        if len(encoded) > longest:
            raise TooLarge(
                f"{where} has {len(encoded)} bytes; a request may have {longest}", param=where
            )
        yield encoded + b"\n"


def _check_id(custom_id: str, seen: set[str], where: str) -> None:
    if not _ID.fullmatch(custom_id):
        raise InvalidRequest(
            f"{where} is {clip(custom_id)}; it must have 1 to 64 letters, digits, - or _",
            param=where,
        )
    if custom_id in seen:
        raise InvalidRequest(
            f"{where} is {clip(custom_id)}, as that of another request; they must differ",
            param=where,
        )
    seen.add(custom_id)


def _check_params(body: bytes, where: str) -> None:
    try:
        fields = BODY.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"{where} must be an object: {error}"[:500], param=where) from None
    if fields.stream:
        raise InvalidRequest(
            f"{where}.stream must be false: batches don't stream", param=f"{where}.stream"
        )
