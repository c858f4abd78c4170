"""/v1/conversations and their items: what requests to /v1/responses go on from and add to."""

from __future__ import annotations

import asyncio
import os
import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock_gateway.batches.request import check_metadata
from penstock_gateway.http.errors import HTTPError, clip
from penstock_gateway.http.operations import Operation, OperationRoute, asked
from penstock_gateway.http.replies import send_json
from penstock_gateway.request.endpoint import JsonEndpoint
from penstock_gateway.request.fields import tenant_of
from penstock_gateway.responses.conversation import (
    add_items,
    checked_items,
    full,
    kept_conversations,
    not_there,
)
from penstock_gateway.responses.input_items import InputItem
from penstock_gateway.responses.inputs import INCLUDE, ITEMS_QUERY
from penstock_gateway.service import Service
from penstock_gateway.storage.records import ConversationRecord

TAG = "generate"
PATH = "/v1/conversations"
ONE_PATH = f"{PATH}/{{id}}"
ITEMS_PATH = f"{ONE_PATH}/items"
ITEM_PATH = f"{ITEMS_PATH}/{{item}}"


class ConversationRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """items: what is in it from the beginning."""

    items: list[InputItem] | None = None
    metadata: dict[str, str] | None = None


class ConversationUpdate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """metadata: in place of what there was."""

    metadata: dict[str, str] | None


class ItemsRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """items: they are added at the end."""

    items: list[InputItem]


class ItemList(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="list"):
    """data: items with ids of their own."""

    data: list[msgspec.Raw]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ConversationDeleted(
    msgspec.Struct, frozen=True, tag_field="object", tag="conversation.deleted"
):
    id: str
    deleted: bool = True


CREATE = Operation(
    method="POST",
    path=PATH,
    summary="Create a conversation, which responses go on from",
    tag=TAG,
    body=ConversationRequest,
    reply=ConversationRecord,
)
ONE = Operation(
    method="GET",
    path=ONE_PATH,
    summary="Retrieve a conversation",
    tag=TAG,
    reply=ConversationRecord,
    statuses=(404,),
)
UPDATE = Operation(
    method="POST",
    path=ONE_PATH,
    summary="Replace a conversation's metadata",
    tag=TAG,
    body=ConversationUpdate,
    reply=ConversationRecord,
)
DELETE = Operation(
    method="DELETE",
    path=ONE_PATH,
    summary="Delete a conversation with its items",
    tag=TAG,
    reply=ConversationDeleted,
    statuses=(404,),
)
ADD = Operation(
    method="POST",
    path=ITEMS_PATH,
    summary="Add items to a conversation",
    tag=TAG,
    body=ItemsRequest,
    reply=ItemList,
    query={"include": INCLUDE},
)
ITEMS = Operation(
    method="GET",
    path=ITEMS_PATH,
    summary="List a conversation's items",
    tag=TAG,
    reply=ItemList,
    statuses=(404,),
    query=ITEMS_QUERY,
)
ITEM = Operation(
    method="GET",
    path=ITEM_PATH,
    summary="Retrieve an item of a conversation",
    tag=TAG,
    reply=dict,
    statuses=(404,),
    query={"include": INCLUDE},
)
DELETE_ITEM = Operation(
    method="DELETE",
    path=ITEM_PATH,
    summary="Delete an item of a conversation",
    tag=TAG,
    reply=ConversationRecord,
    statuses=(404,),
)


class _Named(msgspec.Struct):
    id: str


class CreateConversation(JsonEndpoint[ConversationRequest]):
    """Empty, or with items."""

    request_type = ConversationRequest

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, owner = self._service, tenant_of(scope)
        records = kept_conversations(service)
        request = await self.read(scope, receive)
        check_metadata(request.metadata or {})
        items = await checked_items(service, owner, request.items or [])
        record = ConversationRecord(
            id=f"conv_{os.urandom(16).hex()}",
            created_at=int(time.time()),
            metadata=request.metadata or {},
        )
        from penstock_gateway.storage.conversation_records import ConversationFull

        try:
            await records.create(owner, record, items, service.config.max_body_bytes)
        except ConversationFull as no_room:
            raise full(record.id, str(no_room)) from None
        await send_json(send, 200, msgspec.json.encode(record))


class UpdateEndpoint(JsonEndpoint[ConversationUpdate]):
    """Answers with the conversation."""

    request_type = ConversationUpdate
    takes_long_bodies = False

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        records, owner = kept_conversations(self._service), tenant_of(scope)
        id = scope["path_params"]["id"]
        _there(await records.find(owner, id), id)
        request = await self.read(scope, receive)
        check_metadata(request.metadata or {})
        record = await records.describe(owner, id, request.metadata or {})
        await send_json(send, 200, msgspec.json.encode(_there(record, id)))


class AddEndpoint(JsonEndpoint[ItemsRequest]):
    """Answers with what was added."""

    request_type = ItemsRequest

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, owner, id = self._service, tenant_of(scope), scope["path_params"]["id"]
        _there(await kept_conversations(service).find(owner, id), id)
        request = await self.read(scope, receive)
        items = await checked_items(service, owner, request.items)
        await add_items(service, owner, id, items)
        added = [each.item for each in items]
        payload = await asyncio.to_thread(_list_bytes, added)
        await send_json(send, 200, payload)


def routes(service: Service) -> list[OperationRoute]:
    """The eight routes of conversations; 404 if the server keeps no responses."""

    async def one(request: Request) -> Response:
        id = request.path_params["id"]
        record = await kept_conversations(service).find(tenant_of(request.scope), id)
        return _json(_there(record, id))

    async def delete(request: Request) -> Response:
        id = request.path_params["id"]
        if not await kept_conversations(service).remove(tenant_of(request.scope), id):
            raise not_there(id)
        return _json(ConversationDeleted(id))

    async def items(request: Request) -> Response:
        records, owner, id = (
            kept_conversations(service),
            tenant_of(request.scope),
            request.path_params["id"],
        )
        limit, after = asked(request, "limit"), asked(request, "after")
        order = asked(request, "order")
        found = await records.page(owner, id, limit=limit, order=order, after=after)
        if found is None:
            _there(await records.find(owner, id), id)
            raise _no_item(id, str(after), "after")
        return _json(_list(found[:limit], has_more=len(found) > limit))

    async def item(request: Request) -> Response:
        id, name = request.path_params["id"], request.path_params["item"]
        owner = tenant_of(request.scope)
        records = kept_conversations(service)
        found = await records.item(owner, id, name)
        if found is None:
            _there(await records.find(owner, id), id)
            raise _no_item(id, name)
        return Response(found, media_type="application/json")

    async def delete_item(request: Request) -> Response:
        id, name = request.path_params["id"], request.path_params["item"]
        owner = tenant_of(request.scope)
        records = kept_conversations(service)
        record = await records.remove_item(owner, id, name)
        if record is None:
            _there(await records.find(owner, id), id)
            raise _no_item(id, name)
        return _json(record)

    return [
        CREATE.route(CreateConversation(service)),
        ONE.route(one),
        UPDATE.route(UpdateEndpoint(service)),
        DELETE.route(delete),
        ADD.route(AddEndpoint(service)),
        ITEMS.route(items),
        ITEM.route(item),
        DELETE_ITEM.route(delete_item),
    ]


def _list(items: list[str], *, has_more: bool) -> ItemList:
    """items: JSON."""
    return ItemList(
        data=[msgspec.Raw(each.encode()) for each in items],
        first_id=_id_of(items[0]) if items else None,
        last_id=_id_of(items[-1]) if items else None,
        has_more=has_more,
    )


def _list_bytes(items: list[str]) -> bytes:
    return msgspec.json.encode(_list(items, has_more=False))


def _id_of(item: str) -> str:
    return msgspec.json.decode(item, type=_Named).id


def _there(record: ConversationRecord | None, id: str) -> ConversationRecord:
    if record is None:
        raise not_there(id)
    return record


def _no_item(id: str, item: str, param: str | None = None) -> HTTPError:
    return HTTPError(
        404,
        f"the conversation {clip(id)} has no item {clip(item)}",
        param=param,
        code="item_not_found",
    )


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
