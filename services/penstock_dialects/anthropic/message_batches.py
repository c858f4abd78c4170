"""The endpoints of /v1/messages/batches, as in Anthropic's API. The runner does the work."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Iterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.errors import InvalidRequest, TooLarge
from penstock.process import logs
from penstock_dialects.anthropic.batch_results import (
    PATH,
    MessageBatch,
    MessageBatchDeleted,
    MessageBatchPage,
    page_of,
    result_blocks,
    shown,
)
from penstock_dialects.anthropic.errors import ERRORS
from penstock_dialects.anthropic.models import BETA, MOST, USUAL
from penstock_gateway.batches.endpoint import existing
from penstock_gateway.batches.request import BODY, BatchLine
from penstock_gateway.files.endpoint import RETRY_AFTER, check_room, no_room, read_on
from penstock_gateway.http.errors import HTTPError, clip, unavailable
from penstock_gateway.http.operations import Operation, OperationRoute, Parameters, asked
from penstock_gateway.http.replies import send_json
from penstock_gateway.keys.ring import current
from penstock_gateway.request.endpoint import JsonEndpoint
from penstock_gateway.request.fields import tenant_of
from penstock_gateway.service import Service
from penstock_gateway.storage.records import (
    ENDED,
    MESSAGES,
    BatchRecord,
    BatchWork,
    FileRecord,
    RequestCounts,
)
from penstock_gateway.storage.store import Store, new_id

# The body of POST /v1/messages/batches, and the file that it becomes.

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


log = logs.get(__name__)

TAG = "batches"
WINDOW, WINDOW_SECONDS = "24h", 86_400
"""What isn't answered then never is."""
DAY = 86_400
PAGES: Parameters = {
    "limit": (
        "Maximum number of batches.",
        {"type": "integer", "minimum": 1, "maximum": MOST, "default": USUAL},
    ),
    "after_id": ("The batches after this one.", {"type": "string"}),
    "before_id": ("The batches before this one.", {"type": "string"}),
}

CREATE = Operation(
    method="POST",
    path=PATH,
    summary="Create a batch of messages, answered at the lowest priority (Anthropic)",
    tag=TAG,
    body=MessageBatchRequest,
    reply=MessageBatch,
    errors_as=ERRORS,
    query=BETA,
)
LIST = Operation(
    method="GET",
    path=PATH,
    summary="List the caller's batches of messages, newest first (Anthropic)",
    tag=TAG,
    reply=MessageBatchPage,
    statuses=(404,),
    errors_as=ERRORS,
    query={**PAGES, **BETA},
)
ONE = Operation(
    method="GET",
    path=f"{PATH}/{{id}}",
    summary="Retrieve the progress of a batch of messages (Anthropic)",
    tag=TAG,
    reply=MessageBatch,
    statuses=(404,),
    errors_as=ERRORS,
    query=BETA,
)
RESULTS = Operation(
    method="GET",
    path=f"{PATH}/{{id}}/results",
    summary="Retrieve the results of a batch of messages (Anthropic)",
    tag=TAG,
    media_type="application/x-jsonl",
    statuses=(404,),
    errors_as=ERRORS,
    query=BETA,
)
CANCEL = Operation(
    method="POST",
    path=f"{PATH}/{{id}}/cancel",
    summary="Cancel a batch of messages; answers that are already complete are kept (Anthropic)",
    tag=TAG,
    reply=MessageBatch,
    statuses=(404,),
    errors_as=ERRORS,
    query=BETA,
)
DELETE = Operation(
    method="DELETE",
    path=f"{PATH}/{{id}}",
    summary="Delete a batch of messages that has ended, and its results (Anthropic)",
    tag=TAG,
    reply=MessageBatchDeleted,
    statuses=(404,),
    errors_as=ERRORS,
    query=BETA,
)


class CreateMessageBatch(JsonEndpoint[MessageBatchRequest]):
    """Writes the requests into a file of the caller's, and answers once the batch is on record."""

    request_type = MessageBatchRequest

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        store, owner = self._service.stored(), tenant_of(scope)
        request = await self.read(scope, receive)
        await check_room(store, owner)
        record = await self._made(store, owner, request)
        await send_json(send, 200, msgspec.json.encode(_shown(store, record)))

    async def _made(self, store: Store, owner: str, request: MessageBatchRequest) -> BatchRecord:
        settings, key = store.settings, current.get().key
        now, keep = int(time.time()), DAY * settings.batch_result_days
        record = BatchRecord(
            id=f"msgbatch_{os.urandom(16).hex()}",
            endpoint=MESSAGES,
            input_file_id=new_id("file"),
            completion_window=WINDOW,
            status="validating",
            created_at=now,
            expires_at=now + WINDOW_SECONDS,
            request_counts=RequestCounts(total=len(request.requests)),
        )
        work = BatchWork(
            record=record,
            owner=owner,
            key_digest="" if key is None else key.sha256.lower(),
            keep_seconds=keep,
        )
        lines = lines_of(
            request, most=settings.max_batch_lines, longest=self._service.config.max_body_bytes
        )
        file_id, most = record.input_file_id, settings.max_open_batches
        kept = False
        try:
            size = await _written(store, file_id, lines)
            file = FileRecord(
                id=file_id,
                bytes=size,
                created_at=now,
                filename=f"{record.id}.jsonl",
                purpose="batch",
                expires_at=record.expires_at + keep,
            )
            await _add_file(store, owner, file)
            kept = await store.batches.add(work, most)
            if not kept:
                await store.files.remove(owner, file_id)
                raise HTTPError(
                    429,
                    f"{most} batches are open, the maximum",
                    type="rate_limit_error",
                    code="too_many_batches",
                )
        finally:
            if not kept:
                await asyncio.to_thread(store.contents.remove, file_id)
        return record


def routes(service: Service) -> list[OperationRoute]:
    """The six routes of message batches; 404 if the server keeps no files."""

    async def batches(request: Request) -> Response:
        store, owner = service.stored(), tenant_of(request.scope)
        return _json(await _page(store, owner, request))

    async def batch(request: Request) -> Response:
        store = service.stored()
        return _response(store, await _find(store, request))

    async def results(request: Request) -> Response:
        store = service.stored()
        record = await _find(store, request)
        if record.status not in ENDED:
            raise HTTPError(
                404,
                f"the batch {record.id} hasn't ended; its results are there once its "
                "processing_status is ended",
            )
        pieces = result_blocks(store.contents, record)
        try:
            parts = await read_on(pieces, "the results", record.id)
        except FileNotFoundError:
            raise HTTPError(
                404, f"the results of the batch {record.id} are no longer stored"
            ) from None
        return StreamingResponse(parts, media_type="application/x-jsonl")

    async def cancel(request: Request) -> Response:
        store, owner = service.stored(), tenant_of(request.scope)
        name = request.path_params["id"]
        record = existing(await store.message_batches.cancel(owner, name), name)
        if record.status in ENDED:
            raise InvalidRequest(f"the batch {name} has ended, and can't be canceled")
        return _response(store, record)

    async def delete(request: Request) -> Response:
        store, owner = service.stored(), tenant_of(request.scope)
        record = await _find(store, request)
        files = await store.message_batches.remove(owner, record.id)
        if files is None:
            raise InvalidRequest(
                f"the batch {record.id} hasn't ended, and can't be deleted; cancel it first"
            )
        for file_id in files:
            await asyncio.to_thread(store.contents.remove, file_id)
        return _json(MessageBatchDeleted(record.id))

    return [
        CREATE.route(CreateMessageBatch(service)),
        LIST.route(batches),
        ONE.route(batch),
        RESULTS.route(results),
        CANCEL.route(cancel),
        DELETE.route(delete),
    ]


async def _written(store: Store, file_id: str, lines: Iterator[bytes]) -> int:
    """The file's bytes. Raises InvalidRequest, and HTTPError 503 where it can't be written."""
    try:
        size = await asyncio.to_thread(store.contents.write, file_id, lines)
    except OSError as error:
        log.error("a batch's requests can't be written", reason=str(error))
        raise unavailable(
            "the batch can't be stored at the moment", "storage_unavailable", RETRY_AFTER
        ) from None
    most = store.settings.max_file_bytes
    if size > most:
        raise TooLarge(f"requests have {size} bytes; a batch may have {most}", param="requests")
    return size


async def _add_file(store: Store, owner: str, file: FileRecord) -> None:
    settings = store.settings
    most_files, most_bytes = settings.max_stored_files, settings.max_stored_bytes
    if not await store.files.add(owner, file, most_files=most_files, most_bytes=most_bytes):
        raise no_room(f"the batch's {file.bytes} bytes are more than the space that is left")


async def _find(store: Store, request: Request) -> BatchRecord:
    name, owner = request.path_params["id"], tenant_of(request.scope)
    return existing(await store.message_batches.find(owner, name), name)


async def _page(store: Store, owner: str, request: Request) -> MessageBatchPage:
    limit = asked(request, "limit")
    after, before = asked(request, "after_id"), asked(request, "before_id")
    if after is not None and before is not None:
        raise InvalidRequest("after_id and before_id exclude each other", param="before_id")
    found = await store.message_batches.page(owner, limit=limit, after=after, before=before)
    if found is None:
        name, given = ("after_id", after) if before is None else ("before_id", before)
        raise InvalidRequest(f"{name} is {clip(given)}, which is no batch", param=name)
    batches = [_shown(store, record) for record in found[:limit]]
    if before is not None:
        batches.reverse()
    return page_of(batches, has_more=len(found) > limit)


def _shown(store: Store, record: BatchRecord) -> MessageBatch:
    return shown(record, DAY * store.settings.batch_result_days, time.time())


def _response(store: Store, record: BatchRecord) -> Response:
    return _json(_shown(store, record))


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
