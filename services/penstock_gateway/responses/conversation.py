"""Conversations that a request goes on from, and that its items and its answer's are added to.

Two requests may answer at once in one conversation. Each goes on from what was in it when the
request began, and adds its own items together, when its answer is there: who ends first stands
first.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import InvalidRequest
from penstock_gateway.chat.messages import check_role
from penstock_gateway.http.errors import HTTPError, clip
from penstock_gateway.request.body import ConversationAmount
from penstock_gateway.request.dialect import moved
from penstock_gateway.responses.chat_translation import ChatTranslation
from penstock_gateway.responses.input_items import InputItem, as_shown, without_nothing
from penstock_gateway.responses.references import with_items
from penstock_gateway.responses.request import STATELESS, ResponsesRequest
from penstock_gateway.responses.tool_kinds import OUTPUTS
from penstock_gateway.service import Service
from penstock_gateway.storage.records import ConversationItem

if TYPE_CHECKING:
    from penstock_gateway.storage.conversation_records import ConversationRecords

PARAM = "conversation"
TURN_BYTES = 1 << 18
"""Bytes of items that are decoded in one turn of the event loop."""

_ITEM = msgspec.json.Decoder(InputItem)
_PREFIXES = {"message": "msg", "function_call": "fc", "reasoning": "rs"}


class _Named(msgspec.Struct):
    id: str


class _Answer(msgspec.Struct):
    id: str
    output: list[msgspec.Raw]


_NAMED = msgspec.json.Decoder(_Named)
_ANSWER = msgspec.json.Decoder(_Answer)


def kept_conversations(service: Service) -> ConversationRecords:
    """Raises HTTPError 404 where the server keeps none."""
    records = None if service.store is None else service.store.conversations
    if records is None:
        raise HTTPError(404, STATELESS, code="storage_off")
    return records


def conversation_id(request: ResponsesRequest) -> str | None:
    """The id of the conversation that a request names; None if it names none."""
    named = request.conversation
    return named if named is None or isinstance(named, str) else named.id


async def said_in(
    service: Service, request: ResponsesRequest, id: str, owner: str, own_id: str
) -> list[InputItem]:
    """What was said in the conversation.  own_id: of the response to come, which takes the place of
    an earlier answer of that id. Raises InvalidRequest, and HTTPError 404 where it isn't there."""
    records = None if service.store is None else service.store.conversations
    if records is None:
        raise InvalidRequest(
            f"{PARAM} is {clip(id)}, but {STATELESS}; allowed: null",
            param=PARAM,
            code="unsupported_value",
        )
    found = await records.said(owner, id, own_id=own_id)
    if found is None:
        raise not_there(id, PARAM)
    own = 1 if isinstance(request.input, str) else len(request.input or ())
    if len(found) + own >= records.most_items:
        most = f"it may have {records.most_items}, with those to come"
        raise full(id, f"has {len(found)} items; {most}", PARAM)
    said: list[InputItem] = []
    amount = ConversationAmount(sum(map(len, found)))
    size = 0
    for item in found:
        await amount.add(item.encode(), f"the conversation {clip(id)}", param=PARAM)
        said.append(_ITEM.decode(item))
        size += len(item)
        if size > TURN_BYTES:
            size = 0
            await asyncio.sleep(0)
    return said


async def add_turn(
    service: Service, request: ResponsesRequest, owner: str, response: list[bytes]
) -> None:
    """Adds what the request brought and what was answered to its conversation, where it names one.
    response: JSON, in pieces. Raises HTTPError: 404 where the conversation was deleted meanwhile,
    400 where it has no room."""
    id = conversation_id(request)
    if id is None:
        return
    whole = await asyncio.to_thread(b"".join, response)
    answer = _ANSWER.decode(whole)
    own = request.input
    brought = [InputItem(role="user", content=own)] if isinstance(own, str) else own or []
    items = await asyncio.to_thread(items_of, brought)
    for each in answer.output:
        item = bytes(each)
        named = _NAMED.decode(item).id
        items.append(ConversationItem(id=named, item=item.decode(), size=len(item)))
    await add_items(service, owner, id, items, response=answer.id, param=PARAM)


async def add_items(
    service: Service,
    owner: str,
    id: str,
    items: list[ConversationItem],
    *,
    response: str = "",
    param: str | None = None,
) -> None:
    """Adds items to a conversation, as `ConversationRecords.append`. param: the field that names
    it. Raises HTTPError: 404, or 400 where it has no room."""
    records = kept_conversations(service)
    from penstock_gateway.storage.conversation_records import ConversationFull, ConversationGone

    most = service.config.max_body_bytes
    try:
        await records.append(owner, id, items, most_bytes=most, response=response)
    except ConversationGone:
        raise not_there(id, param) from None
    except ConversationFull as no_room:
        raise full(id, str(no_room), param) from None


async def checked_items(
    service: Service, owner: str, items: list[InputItem]
) -> list[ConversationItem]:
    """Items that a client adds, under ids of our own. Raises InvalidRequest and HTTPError for those
    that no request could bring."""
    request = ResponsesRequest(input=items)
    for place, item in enumerate(items):
        if item.role is not None:
            check_role(item.role, f"items[{place}]")
    try:
        request = await with_items(service, request, owner)
        found = request.input if isinstance(request.input, list) else []
        ChatTranslation(ResponsesRequest(input=[*found, InputItem(role="user", content="")]))
    except InvalidRequest as error:
        raise error.renamed(_of_items) from None
    except HTTPError as error:
        body = error.body
        shown = InvalidRequest(body.message, param=body.param).renamed(_of_items)
        raise HTTPError(error.status, shown.message, param=shown.param, code=body.code) from None
    return await asyncio.to_thread(items_of, found)


def items_of(items: Iterable[InputItem]) -> list[ConversationItem]:
    """Under ids of their own: what a client calls them may be there already. For a thread, where
    they may be large: each step of it is a turn of its own there."""
    made: list[ConversationItem] = []
    for item in items:
        fields = without_nothing(item)
        if item.type in OUTPUTS and item.call_id is None:
            fields["call_id"] = item.id  # Which is the call's.
        prefix = _PREFIXES.get(item.type or "message", "item")
        id = f"{prefix}_{os.urandom(16).hex()}"
        made.append(_kept(id, as_shown(id, {**fields, "id": id})))
    return made


def not_there(id: str, param: str | None = None) -> HTTPError:
    return HTTPError(
        404, f"there is no conversation {clip(id)}", param=param, code="conversation_not_found"
    )


def full(id: str, why: str, param: str | None = None) -> HTTPError:
    """400: it is the client's to make room. param: the field that names the conversation."""
    return HTTPError(
        400, f"the conversation {clip(id)} {why}", param=param, code="conversation_full"
    )


def _kept(id: str, item: dict[str, Any]) -> ConversationItem:
    encoded = msgspec.json.encode(item)
    return ConversationItem(id=id, item=encoded.decode(), size=len(encoded))


def _of_items(path: str) -> str:
    return moved(path, "input", "items")
