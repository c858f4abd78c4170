"""/v1/files, as in OpenAI's API: upload, list, retrieve, download and delete. An upload is written
to disk as it arrives, within the owner's limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.config.storage_settings import StorageSettings
from penstock.errors import InvalidRequest, TooLarge
from penstock.process import logs
from penstock_gateway.http.errors import HTTPError, clip, leaving, unavailable
from penstock_gateway.http.operations import Operation, OperationRoute, asked
from penstock_gateway.http.replies import send_json
from penstock_gateway.request.body import content_type, feed_body
from penstock_gateway.request.decoding import convert
from penstock_gateway.request.fields import tenant_of
from penstock_gateway.request.multipart import Form, FormReader, boundary_of
from penstock_gateway.service import Service
from penstock_gateway.storage.records import AFTER, FileRecord, Page, limit_schema, page_of
from penstock_gateway.storage.store import Store, new_id

log = logs.get(__name__)

FILE = "file"
UPLOADED = ("batch", "user_data")
"""Purposes: what a batch is made of, and documents of messages."""
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
        reader = FormReader(boundary_of(content_type(scope)), FILE, take, writer.write)
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
    if asked.purpose not in UPLOADED:
        raise InvalidRequest(
            f"purpose is {asked.purpose[:40]!r}; allowed: {', '.join(UPLOADED)}",
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


TAG = "batches"
MOST, USUAL = 10_000, 10_000
"""Files of one page."""
UPLOAD_SECONDS = 600.0
"""Seconds that a file may take on its way in."""
RETRY_AFTER = 30.0
"""Seconds after which a disk or a store may have an answer again."""
PURPOSES = (*UPLOADED, "batch_output", "batch_error")


class FileDeleted(msgspec.Struct, frozen=True, tag_field="object", tag="file"):
    id: str
    deleted: bool = True


UPLOAD = Operation(
    method="POST",
    path="/v1/files",
    summary="Upload a file of requests for a batch",
    tag=TAG,
    body=FileForm,
    body_type="multipart/form-data",
    reply=FileRecord,
)
LIST = Operation(
    method="GET",
    path="/v1/files",
    summary="List the caller's files",
    tag=TAG,
    reply=Page[FileRecord],
    statuses=(404,),
    query={
        "limit": limit_schema(MOST, USUAL),
        "after": AFTER,
        "order": ("By age.", {"type": "string", "enum": ["asc", "desc"], "default": "desc"}),
        "purpose": ("Only files with this purpose.", {"type": "string", "enum": list(PURPOSES)}),
    },
)
ONE = Operation(
    method="GET",
    path="/v1/files/{id}",
    summary="Retrieve a file's description",
    tag=TAG,
    reply=FileRecord,
    statuses=(404,),
)
CONTENT = Operation(
    method="GET",
    path="/v1/files/{id}/content",
    summary="Retrieve a file's contents",
    tag=TAG,
    media_type="application/octet-stream",
    statuses=(404,),
)
DELETE = Operation(
    method="DELETE",
    path="/v1/files/{id}",
    summary="Delete a file",
    tag=TAG,
    reply=FileDeleted,
    statuses=(404, 409),
)


class UploadEndpoint:
    """An ASGI application: it reads the body itself."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        store = self._service.stored()
        if self._service.draining:
            raise leaving()
        owner = tenant_of(scope)
        with self._service.answering, self._service.uploads.one(owner):
            record = await receive_file(store, owner, scope, receive, UPLOAD_SECONDS)
        await send_json(send, 200, msgspec.json.encode(record))


def routes(service: Service) -> list[OperationRoute]:
    """The five routes of files; 404 if the server keeps no files."""

    async def files(request: Request) -> Response:
        limit, after = asked(request, "limit"), asked(request, "after")
        found = await service.stored().files.page(
            tenant_of(request.scope),
            limit=limit,
            order=asked(request, "order"),
            after=after,
            purpose=asked(request, "purpose"),
        )
        if found is None:
            raise InvalidRequest(f"after is {clip(after)}, which is no file", param="after")
        return _json(page_of(found, limit))

    async def file(request: Request) -> Response:
        return _json(await _find(service, request))

    async def content(request: Request) -> Response:
        record = await _find(service, request)
        pieces = service.stored().contents.read(record.id)
        try:
            parts = await read_on(pieces, "the file", record.id)
        except FileNotFoundError:
            # Deleted meanwhile, or written with another --data-dir.
            log.error("a file's contents are missing", file=record.id)
            raise not_there(record.id) from None
        size = {"content-length": str(record.bytes)}
        return StreamingResponse(parts, headers=size, media_type="application/octet-stream")

    async def delete(request: Request) -> Response:
        record, store = await _find(service, request), service.stored()
        if await store.batches.uses(record.id):
            raise HTTPError(
                409,
                f"an open batch uses the file {record.id}; cancel the batch first",
                code="file_in_use",
            )
        await store.files.remove(tenant_of(request.scope), record.id)
        await asyncio.to_thread(store.contents.remove, record.id)
        return _json(FileDeleted(record.id))

    return [
        UPLOAD.route(UploadEndpoint(service)),
        LIST.route(files),
        ONE.route(file),
        CONTENT.route(content),
        DELETE.route(delete),
    ]


async def _find(service: Service, request: Request) -> FileRecord:
    file_id = request.path_params["id"]
    record = await service.stored().files.find(tenant_of(request.scope), file_id)
    if record is None:
        raise not_there(file_id)
    return record


async def read_on(pieces: Iterator[bytes], what: str, of: str) -> AsyncIterator[bytes]:
    """The pieces of a stored file, of which the first has been read: so errors are raised before a
    reply begins. `what` names it in an error, `of` in the log. Raises FileNotFoundError, and
    HTTPError (503) for a file that can't be read."""
    try:
        first = await asyncio.to_thread(next, pieces, b"")
    except FileNotFoundError:
        raise
    except OSError as error:
        log.error("stored contents can't be read", what=what, of=of, reason=str(error))
        raise unavailable(
            f"{what} can't be read at the moment", "storage_unavailable", RETRY_AFTER
        ) from None

    async def parts() -> AsyncIterator[bytes]:
        yield first
        while part := await asyncio.to_thread(next, pieces, b""):
            yield part

    return parts()


def not_there(file_id: str) -> HTTPError:
    return HTTPError(404, f"there is no file {clip(file_id)}", code="file_not_found")


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
