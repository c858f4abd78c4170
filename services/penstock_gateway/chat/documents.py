"""The documents of a chat: the text of each takes its place among the message's texts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.errors import InvalidRequest
from penstock.media.desk import MediaDesk, MediaLease
from penstock.media.document import TEXT
from penstock.media.sources import MediaSource
from penstock.media.wire import DocumentText
from penstock_gateway.chat.messages import ContentPart, Message
from penstock_gateway.http.errors import clip
from penstock_gateway.request.media_parts import is_document
from penstock_gateway.request.tokenising import MAX_CHARACTERS_PER_TOKEN, MAX_GIVEN_BYTES

if TYPE_CHECKING:
    from penstock_gateway.storage.store import Store

MOST = 32
"""Documents of a request."""
_LONGEST_NAME = 200
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029`]+")
"""What would end the line of a name, or begin its block."""


class _Place(NamedTuple):
    """Where a document stands: the numbers of its message and of its part."""

    message: int
    part: int

    @property
    def words(self) -> str:
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
        _Place(i, j): _file(part, _Place(i, j).words)
        for i, message in enumerate(messages)
        if isinstance(message.content, list)
        for j, part in enumerate(message.content)
        if is_document(part)
    }
    if len(found) > MOST:
        raise InvalidRequest(
            f"the request has {len(found)} documents; at most {MOST} are accepted",
            param="messages",
            code="too_many_documents",
        )
    characters = min(limit * MAX_CHARACTERS_PER_TOKEN, MAX_GIVEN_BYTES)
    wanted = DocumentText(pages=desk.max_pages, characters=characters)
    brought = {
        place: _source(file, place.words, store, lease.tenant)
        for place, file in found.items()
        if "text" not in file
    }
    items = await desk.prepare_alike(wanted, list(brought.values()), lease)
    blocks = {}
    for place, item in zip(brought, items, strict=True):
        text = _text_of(item.data)
        blocks[place] = block(found[place]["filename"], text, *item.shape)
    for place, file in found.items():
        if place not in blocks:
            _check_length(file["text"], characters, place.words)
            blocks[place] = block(file["filename"], file["text"])
    return [_filled(message, number, blocks) for number, message in enumerate(messages)]


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
    name = _UNFIT.sub(" ", (given.get("filename") or "")[:_LONGEST_NAME]).strip()
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
        load = partial(_stored, store, owner, file["file_id"], where)
        return MediaSource(where, "document", load=load)
    if data is None:
        raise InvalidRequest(
            f"{where} must hold file_data, the file in base64 as a data: URI, or a file_id",
            param=where,
            code="missing_required_parameter",
        )
    if ":" not in data[:40]:  # Some clients send base64 alone, which has no colon.
        data = f"data:;base64,{data}"
    return MediaSource(where, "document", url=data)


async def _stored(
    store: Store, owner: str, file_id: str, where: str, take: Callable[[int], None]
) -> bytes:
    """The bytes of a file of the owner's. take: asked for room first. Raises InvalidRequest."""
    record = await store.files.find(owner, file_id)
    if record is not None:
        take(record.bytes)
        try:
            return await asyncio.to_thread(lambda: b"".join(store.contents.read(record.id)))
        except OSError:
            pass  # It was deleted meanwhile.
    raise InvalidRequest(
        f"{where}: there is no file {clip(file_id)}", param=where, code="file_not_found"
    )


def _check_length(text: str, most: int, where: str) -> None:
    if len(text) > most:
        raise InvalidRequest(
            f"{where}: the document has {len(text)} characters; at most {most} are accepted with "
            "this model's context",
            param=where,
            code="context_length_exceeded",
        )
