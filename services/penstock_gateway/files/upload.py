"""An upload: written to disk as it arrives, within the owner's limits."""

from __future__ import annotations

import asyncio
import time

import msgspec
from starlette.types import Receive, Scope

from penstock.config.storage_settings import StorageSettings
from penstock.errors import InvalidRequest, TooLarge
from penstock.process import logs
from penstock_gateway.http.errors import HTTPError, unavailable
from penstock_gateway.request.body import feed_body
from penstock_gateway.request.endpoint import convert
from penstock_gateway.request.multipart import Form, FormReader, boundary_of
from penstock_gateway.storage.records import FileRecord
from penstock_gateway.storage.store import Store, new_id

log = logs.get(__name__)

FILE = "file"
PURPOSES = ("batch",)
MAX_NAME = 512
"""Characters of a file's name."""
FORM_BYTES = 65_536
"""Bytes of a form other than its file's."""
LONGEST_LIFE = 3650 * 86_400
SHORTEST_LIFE = 3600


class FileForm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The form, as OpenAI has it. file: JSON Lines, a request a line."""

    file: str
    purpose: str
    expires_after_anchor: str | None = msgspec.field(default=None, name="expires_after[anchor]")
    expires_after_seconds: int | None = msgspec.field(default=None, name="expires_after[seconds]")


async def receive_file(
    store: Store, owner: str, scope: Scope, receive: Receive, patience: float
) -> FileRecord:
    """Keeps the file that a form brings.

    patience: seconds that its sender may take for it.  Raises InvalidRequest, ClientGone, and
    HTTPError: 400, 408, 413, 429 where the owner has no room left, or 503 where the disk
    has none."""
    settings = store.settings
    held = await check_room(store, owner)
    most = min(settings.max_file_bytes, settings.max_stored_bytes - held)
    file_id = new_id("file")
    writer = store.contents.writer(file_id)

    def take(size: int) -> None:
        if writer.size + size <= most:
            return
        if most < settings.max_file_bytes:
            raise _full(settings, held)
        raise TooLarge(f"{FILE} has more than {most} bytes, the maximum", param=FILE)

    try:
        reader = FormReader(boundary_of(_content_type(scope)), FILE, take, writer.write)
        limit = settings.max_file_bytes + FORM_BYTES
        await feed_body(scope, receive, reader.feed, limit=limit, timeout=patience)
        record = _record(file_id, read_form(reader.finish()), writer.size)
        await asyncio.to_thread(writer.keep)
    except OSError as error:
        log.error("a file can't be written", reason=str(error))
        raise unavailable(
            "the file can't be stored at the moment", "storage_unavailable", 30.0
        ) from None
    finally:
        writer.close()
    kept = False
    try:
        kept = await store.files.add(
            owner,
            record,
            most_files=settings.max_stored_files,
            most_bytes=settings.max_stored_bytes,
        )
    finally:
        if not kept:
            await asyncio.to_thread(store.contents.remove, file_id)
    if not kept:
        raise no_room("other files used up the remaining space during the upload")
    return record


async def check_room(store: Store, owner: str) -> int:
    """Bytes of the owner's files. Raises HTTPError 429 where it may store nothing more."""
    settings = store.settings
    count, held = await store.files.totals(owner)
    if count >= settings.max_stored_files:
        raise no_room(f"{count} files are stored, the maximum")
    if held >= settings.max_stored_bytes:
        raise _full(settings, held)
    return held


def read_form(form: Form) -> FileForm:
    """Raises InvalidRequest."""
    if not form.has_file:
        raise InvalidRequest(f"{FILE} is missing", param=FILE, code="missing_required_parameter")
    values: dict[str, str] = {FILE: form.file_name[:MAX_NAME] or FILE}
    for name, value in form.fields:
        if name in values:
            raise InvalidRequest(f"{name[:100]} appears twice", param=name[:100])
        values[name] = value
    asked = convert(values, FileForm, strict=False)
    if asked.purpose not in PURPOSES:
        raise InvalidRequest(
            f"purpose is {asked.purpose[:40]!r}; allowed: {', '.join(PURPOSES)}",
            param="purpose",
            code="unsupported_value",
        )
    _check_life(asked)
    return asked


def _check_life(asked: FileForm) -> None:
    anchor, seconds = asked.expires_after_anchor, asked.expires_after_seconds
    if anchor is None and seconds is None:
        return
    if anchor != "created_at" or seconds is None:
        raise InvalidRequest(
            "expires_after must have the anchor created_at, and seconds", param="expires_after"
        )
    check_seconds(seconds, "expires_after[seconds]")


def check_seconds(seconds: int, param: str) -> None:
    """Raises InvalidRequest for a file's life that is too short or too long."""
    if not SHORTEST_LIFE <= seconds <= LONGEST_LIFE:
        raise InvalidRequest(
            f"{param} is {seconds}; it must be in [{SHORTEST_LIFE}, {LONGEST_LIFE}]", param=param
        )


def _full(settings: StorageSettings, held: int) -> HTTPError:
    return no_room(
        f"stored files may take {settings.max_stored_bytes} bytes in total, and {held} are in use"
    )


def no_room(reason: str) -> HTTPError:
    """429: it is the owner's to make room."""
    return HTTPError(
        429,
        f"{reason}; delete some with DELETE /v1/files/{{id}}",
        type="rate_limit_error",
        code="storage_full",
    )


def _record(file_id: str, asked: FileForm, size: int) -> FileRecord:
    if not size:
        raise InvalidRequest(f"{FILE} is empty", param=FILE)
    now = int(time.time())
    life = asked.expires_after_seconds
    return FileRecord(
        id=file_id,
        bytes=size,
        created_at=now,
        filename=asked.file,
        purpose=asked.purpose,
        expires_at=None if life is None else now + life,
    )


def _content_type(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"content-type":
            return bytes(value)
    return b""
