"""/v1/batches, as in OpenAI's API: create, retrieve, list and cancel. The runner does the work."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.errors import InvalidRequest
from penstock_gateway.batches.request import BatchRequest, check, window_seconds
from penstock_gateway.files.endpoint import check_room
from penstock_gateway.http.errors import HTTPError, clip
from penstock_gateway.http.operations import Operation, OperationRoute, asked
from penstock_gateway.http.replies import send_json
from penstock_gateway.keys.ring import current
from penstock_gateway.request.endpoint import JsonEndpoint
from penstock_gateway.request.fields import tenant_of
from penstock_gateway.service import Service
from penstock_gateway.storage.records import (
    AFTER,
    BatchRecord,
    BatchWork,
    Page,
    limit_schema,
    page_of,
)
from penstock_gateway.storage.store import Store, new_id

TAG = "batches"
MOST, USUAL = 100, 20
"""Batches of one page."""

CREATE = Operation(
    method="POST",
    path="/v1/batches",
    summary="Create a batch: the requests in a file are answered at the lowest priority",
    tag=TAG,
    body=BatchRequest,
    reply=BatchRecord,
)
LIST = Operation(
    method="GET",
    path="/v1/batches",
    summary="List the caller's batches, newest first",
    tag=TAG,
    reply=Page[BatchRecord],
    statuses=(404,),
    query={"limit": limit_schema(MOST, USUAL), "after": AFTER},
)
ONE = Operation(
    method="GET",
    path="/v1/batches/{id}",
    summary="Retrieve a batch's progress",
    tag=TAG,
    reply=BatchRecord,
    statuses=(404,),
)
CANCEL = Operation(
    method="POST",
    path="/v1/batches/{id}/cancel",
    summary="Cancel a batch; answers that are already complete are kept",
    tag=TAG,
    reply=BatchRecord,
    statuses=(404, 409),
)


class CreateEndpoint(JsonEndpoint[BatchRequest]):
    """Answers as soon as the batch is on record."""

    request_type = BatchRequest
    takes_long_bodies = False

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        store, owner = self._service.stored(), tenant_of(scope)
        request = await self.read(scope, receive)
        check(request)
        record = await self._made(store, owner, request)
        await send_json(send, 200, msgspec.json.encode(record))

    async def _made(self, store: Store, owner: str, request: BatchRequest) -> BatchRecord:
        file = await store.files.find(owner, request.input_file_id)
        if file is None or file.purpose != "batch":
            raise HTTPError(
                404,
                f"there is no file {clip(request.input_file_id)} with purpose batch",
                param="input_file_id",
                code="file_not_found",
            )
        await check_room(store, owner)
        now, settings, key = int(time.time()), store.settings, current.get().key
        life = request.output_expires_after
        work = BatchWork(
            record=BatchRecord(
                id=new_id("batch"),
                endpoint=request.endpoint,
                input_file_id=file.id,
                completion_window=request.completion_window,
                status="validating",
                created_at=now,
                expires_at=now + window_seconds(request.completion_window),
                metadata=request.metadata,
            ),
            owner=owner,
            key_digest="" if key is None else key.sha256.lower(),
            keep_seconds=86_400 * settings.batch_result_days if life is None else life.seconds,
        )
        if not await store.batches.add(work, settings.max_open_batches):
            raise HTTPError(
                429,
                f"{settings.max_open_batches} batches are open, the maximum",
                type="rate_limit_error",
                code="too_many_batches",
            )
        return work.record


def routes(service: Service) -> list[OperationRoute]:
    """The four routes of batches; 404 if the server keeps no files."""

    async def batches(request: Request) -> Response:
        limit, after = asked(request, "limit"), asked(request, "after")
        owner = tenant_of(request.scope)
        found = await service.stored().batches.page(owner, limit=limit, after=after)
        if found is None:
            raise InvalidRequest(f"after is {clip(after)}, which is no batch", param="after")
        return _json(page_of(found, limit))

    async def batch(request: Request) -> Response:
        name, owner = request.path_params["id"], tenant_of(request.scope)
        return _json(existing(await service.stored().batches.find(owner, name), name))

    async def cancel(request: Request) -> Response:
        name, owner = request.path_params["id"], tenant_of(request.scope)
        record = existing(await service.stored().batches.cancel(owner, name), name)
        if record.status not in ("cancelling", "cancelled"):
            raise HTTPError(
                409,
                f"the batch {name} is {record.status} and can't be cancelled",
                code="batch_ended",
            )
        return _json(record)

    return [
        CREATE.route(CreateEndpoint(service)),
        LIST.route(batches),
        ONE.route(batch),
        CANCEL.route(cancel),
    ]


def existing(record: BatchRecord | None, name: str) -> BatchRecord:
    """The record. Raises HTTPError where there is none of that name."""
    if record is None:
        raise HTTPError(404, f"there is no batch {clip(name)}", code="batch_not_found")
    return record


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
