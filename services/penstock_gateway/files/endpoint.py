"""/v1/files, as in OpenAI's API: upload, list, retrieve, download and delete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.process import logs
from penstock_gateway.files.upload import FileForm, receive_file
from penstock_gateway.http.errors import HTTPError, clip, leaving, unavailable
from penstock_gateway.http.operations import Operation, OperationRoute, asked
from penstock_gateway.http.replies import send_json
from penstock_gateway.request.terms import tenant_of
from penstock_gateway.service import Service
from penstock_gateway.storage.pages import AFTER, Page, limit_schema, page_of
from penstock_gateway.storage.records import FileRecord

log = logs.get(__name__)

TAG = "batches"
MOST, USUAL = 10_000, 10_000
"""Files of one page."""
UPLOAD_SECONDS = 600.0
"""Seconds that a file may take on its way in."""
RETRY_AFTER = 30.0
"""Seconds after which a disk or a store may have an answer again."""
PURPOSES = ("batch", "batch_output", "batch_error")


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
        with self._service.answering(), self._service.uploads.one(owner):
            record = await receive_file(store, owner, scope, receive, UPLOAD_SECONDS)
        await send_json(send, 200, msgspec.json.encode(record))


def routes(service: Service) -> list[OperationRoute]:
    """The five routes of files; 404 if the server keeps no files."""

    async def files(request: Request) -> Response:
        limit = asked(request, "limit")
        found = await service.stored().files.page(
            tenant_of(request.scope),
            limit=limit,
            order=asked(request, "order"),
            after=asked(request, "after"),
            purpose=asked(request, "purpose"),
        )
        return _json(page_of(found, limit))

    async def file(request: Request) -> Response:
        return _json(await _find(service, request))

    async def content(request: Request) -> Response:
        record = await _find(service, request)
        pieces = service.stored().contents.read(record.id)
        try:
            first = await asyncio.to_thread(next, pieces, b"")
        except FileNotFoundError:
            # Deleted meanwhile, or --data-dir isn't the folder of whoever wrote it.
            log.error("a file's contents are missing", file=record.id)
            raise not_there(record.id) from None
        except OSError as error:
            log.error("a file can't be read", file=record.id, reason=str(error))
            raise unavailable(
                "the file can't be read at the moment", "storage_unavailable", RETRY_AFTER
            ) from None

        async def parts() -> AsyncIterator[bytes]:
            yield first
            while part := await asyncio.to_thread(next, pieces, b""):
                yield part

        size = {"content-length": str(record.bytes)}
        return StreamingResponse(parts(), headers=size, media_type="application/octet-stream")

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


def not_there(file_id: str) -> HTTPError:
    return HTTPError(404, f"there is no file {clip(file_id)}", code="file_not_found")


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
