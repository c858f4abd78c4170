"""The documents of a chat: the text of each takes its place among the message's texts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock.media.desk import MediaDesk
from penstock.media.document import TEXT
from penstock.media.sources import MediaSource
from penstock.media.wire import DocumentText
from penstock.process import logs
from penstock_gateway.chat.messages import ContentPart, Message
from penstock_gateway.request.media_parts import is_document
from penstock_gateway.request.tokenising import (
    MAX_CHARACTERS_PER_TOKEN,
    MAX_GIVEN_BYTES,
    off_the_loop,
)
from penstock_gateway.storage.stored_file import StoredFile

if TYPE_CHECKING:
    from penstock.media.items import PreparedItem
    from penstock_gateway.storage.store import Store

log = logs.get(__name__)

MAX_DOCUMENTS = 32
"""Documents of a request."""
RETRY_AFTER = 30.0
"""Seconds after which a disk or a store may have an answer again."""
_LONGEST_NAME = 200
_ENDS_A_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029`]+")
"""What would end the line of a name, or begin its block."""


class _Place(NamedTuple):
    """Where a document stands: the numbers of its message and of its part."""

    message: int
    part: int

    @property
    def param(self) -> str:
        return f"messages[{self.message}].content[{self.part}]"


async def with_documents(
    messages: list[Message],
    desk: MediaDesk,
    lease: MediaLease,
    limit: int,
    store: Store | None = None,
) -> list[Message]:
    """The messages with a block of text in the place of each document. limit: tokens of the model's
    context.  store: of the files that are named. Raises InvalidRequest that names the part, and
    what preparing media raises."""
    found = {
        _Place(i, j): _file(part, _Place(i, j).param)
        for i, message in enumerate(messages)
        if isinstance(message.content, list)
        for j, part in enumerate(message.content)
        if is_document(part)
    }
    if len(found) > MAX_DOCUMENTS:
        raise InvalidRequest(
            f"the request has {len(found)} documents; at most {MAX_DOCUMENTS} are accepted",
            param="messages",
            code="too_many_documents",
        )
    most = min(limit * MAX_CHARACTERS_PER_TOKEN, MAX_GIVEN_BYTES)
    wanted = DocumentText(pages=desk.max_pages, characters=most)
    brought = {
        place: _source(file, place.param, store, lease.tenant)
        for place, file in found.items()
        if "text" not in file
    }
    prepared = await desk.prepare_alike(wanted, list(brought.values()), lease)
    items = dict(zip(brought, prepared, strict=True))
    size = sum(
        len(items[place].data) if place in items else len(file["text"])
        for place, file in found.items()
    )
    blocks = await off_the_loop(lambda: _blocks(found, items, most), size)
    return [_filled(message, number, blocks) for number, message in enumerate(messages)]


def _blocks(
    found: dict[_Place, dict[str, Any]], items: dict[_Place, PreparedItem], most: int
) -> dict[_Place, str]:
    """The block of each document. most: characters that all their texts may have together. Raises
    InvalidRequest that names the first document beyond them."""
    blocks = {}
    characters = 0
    for place, file in found.items():
        item = items.get(place)
        text = file["text"] if item is None else _text_of(item.data)
        characters += len(text)
        if characters > most:
            which = "it has" if len(text) > most else "it and those before it have"
            raise InvalidRequest(
                f"{place.param}: the document is too long: {which} more than {most} characters of "
                "text, the most that is accepted with this model's context",
                param=place.param,
                code="context_length_exceeded",
            )
        blocks[place] = block(file["filename"], text, *(() if item is None else item.shape))
    return blocks


def _text_of(prepared: bytes) -> str:
    # numpy comes with it, and most gateways never see a document.
    from penstock.media.prepared import read

    return read(prepared)[TEXT].tobytes().decode()


def block(name: str, text: str, pages: int = 0) -> str:
    """The document's text under its name, between two lines of backticks that occur nowhere in it:
    so it can't seem to end before its end."""
    count = f" ({pages} {'page' if pages == 1 else 'pages'})" if pages else ""
    fence = "```"
    while fence in text:
        fence *= 2
    return f"{name}{count}:\n{fence}\n{text}\n{fence}\n"


def _filled(message: Message, number: int, blocks: dict[_Place, str]) -> Message:
    if not isinstance(message.content, list):
        return message
    parts = [
        ContentPart(type="text", text=blocks[place]) if place in blocks else part
        for place, part in ((_Place(number, j), part) for j, part in enumerate(message.content))
    ]
    return msgspec.structs.replace(message, content=parts)


def _file(part: ContentPart, where: str) -> dict[str, Any]:
    """What the part says of its file, with a name that fits on a line. Raises InvalidRequest."""
    given = part.file if isinstance(part.file, dict) else {}
    for field in ("filename", "file_data", "file_url", "file_id", "text"):
        if not isinstance(given.get(field, ""), str | None):
            raise InvalidRequest(
                f"{where}: {field} must be a string", param=where, code="invalid_type"
            )
    name = _ENDS_A_NAME.sub(" ", (given.get("filename") or "")[:_LONGEST_NAME]).strip()
    kept = {field: value for field, value in given.items() if value is not None}
    return {**kept, "filename": name or "document"}


def _source(file: dict[str, Any], where: str, store: Store | None, owner: str) -> MediaSource:
    """Raises InvalidRequest for a file that brings nothing."""
    data = file.get("file_data") or file.get("file_url")
    if data is None and "file_id" in file:
        if store is None:
            raise InvalidRequest(
                f"{where}: file_id names a stored file, and this server stores none (--data-dir); "
                "send file_data",
                param=where,
                code="unsupported_value",
            )
        return MediaSource(where, "document", load=StoredFile(store, owner, file["file_id"], where))
    if data is None:
        raise InvalidRequest(
            f"{where} must hold file_data, the file in base64 as a data: URI, or a file_id",
            param=where,
            code="missing_required_parameter",
        )
    if ":" not in data[:40]:  # Some clients send base64 alone, which has no colon.
        data = f"data:;base64,{data}"
    return MediaSource(where, "document", url=data)
