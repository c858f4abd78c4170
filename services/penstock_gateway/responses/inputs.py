"""What a response was made from: its input items, and how many tokens an input has."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.errors import InvalidRequest
from penstock_gateway.chat.endpoint import check_chat, prompt_of, tools_of
from penstock_gateway.chat.prompt import ChatMedia
from penstock_gateway.generate.chunked_reply import Pace
from penstock_gateway.http.errors import HTTPError, clip
from penstock_gateway.http.events import while_connected
from penstock_gateway.http.operations import Operation, OperationRoute, asked, posting
from penstock_gateway.http.replies import send_json
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.request.endpoint import JsonEndpoint
from penstock_gateway.request.fields import tenant_of, terms_headers
from penstock_gateway.responses.chat_translation import ChatTranslation
from penstock_gateway.responses.memory import conversation_before, input_of
from penstock_gateway.responses.references import with_items
from penstock_gateway.responses.reply import ID_PREFIX
from penstock_gateway.responses.request import INCLUDES, ResponsesRequest, check
from penstock_gateway.service import Service
from penstock_gateway.storage.records import AFTER, limit_schema

INCLUDE: tuple[str, dict[str, Any]] = (
    "What to show; without effect, for all that is stored is shown. May be repeated.",
    {"type": "array", "items": {"type": "string", "enum": list(INCLUDES)}},
)
MOST, USUAL = 100, 20
"""Items of one page."""

ITEMS_QUERY: dict[str, tuple[str, dict[str, Any]]] = {
    "limit": limit_schema(MOST, USUAL),
    "after": AFTER,
    "order": ("By place.", {"type": "string", "enum": ["asc", "desc"], "default": "desc"}),
    "include": INCLUDE,
}
"""The query of a page of items, a response's or a conversation's."""


class ItemPage(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="list"):
    """data: items as they were sent, each with an id and a type."""

    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokens(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="response.input_tokens"
):
    """input_tokens: of the whole conversation, the template's own included."""

    input_tokens: int


ITEMS = Operation(
    method="GET",
    path="/v1/responses/{id}/input_items",
    summary="List what a stored response answers, with the conversation before it",
    tag="generate",
    reply=ItemPage,
    statuses=(404,),
    query=ITEMS_QUERY,
)
TOKENS = posting(
    "/v1/responses/input_tokens",
    "Count the tokens of a request to /v1/responses",
    ResponsesRequest,
    InputTokens,
    tag="tokenize",
    headers=(),
)


class CountInputTokens(JsonEndpoint[ResponsesRequest]):
    """Fills the template and tokenises, and asks no engine core."""

    request_type = ResponsesRequest
    answers_while_leaving = True
    runs_elsewhere = True

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await self.read(scope, receive)
        check(request)
        tenant = terms_headers(scope).tenant
        count = await while_connected(self._count(request, tenant), receive)
        await send_json(send, 200, msgspec.json.encode(InputTokens(input_tokens=count)))

    async def _count(self, request: ResponsesRequest, tenant: str) -> int:
        request = await with_items(self._service, request, tenant)
        async with self._service.models.using(request.model) as model:
            before = await conversation_before(self._service, request, tenant, "")
            return await self._count_for(ChatTranslation(request, before), model.engine, tenant)

    async def _count_for(
        self, conversation: ChatTranslation, engine: EngineInfo, tenant: str
    ) -> int:
        try:
            check_chat(conversation.chat)
            use = tools_of(conversation.chat)
            with self._service.media.lease(tenant) as lease:
                media = ChatMedia(self._service.media, lease, store=self._service.store)
                prompt = await prompt_of(conversation.chat, engine, use, media)
        except InvalidRequest as error:
            raise conversation.own_words(error) from None
        return len(prompt.prompt_token_ids)


def routes(service: Service) -> list[OperationRoute]:
    """The routes of a response's input items, and of counting an input's tokens."""

    async def items(request: Request) -> Response:
        id = request.path_params["id"]
        items = await input_of(service, tenant_of(request.scope), id)
        found = [KeptItem(id, place, item) for place, item in enumerate(items)]
        if asked(request, "order") == "desc":
            found = found[::-1]
        after, limit = asked(request, "after"), asked(request, "limit")
        if after is not None:
            found = found[await _place_of(found, after) + 1 :]
        page = [each.shown() for each in found[:limit]]
        listing = ItemPage(
            data=page,
            first_id=found[0].id() if page else None,
            last_id=found[len(page) - 1].id() if page else None,
            has_more=len(found) > limit,
        )
        return Response(msgspec.json.encode(listing), media_type="application/json")

    return [ITEMS.route(items), TOKENS.route(CountInputTokens(service))]


async def _place_of(items: list[KeptItem], id: str) -> int:
    """Raises HTTPError 404 where none has that id."""
    pace = Pace()
    for place, each in enumerate(items):
        if each.id() == id:
            return place
        await pace.rest()
    raise HTTPError(
        404,
        f"after is {clip(id)}, which is no input item of this response",
        param="after",
        code="item_not_found",
    )


class _Named(msgspec.Struct):
    id: str | None = None


_NAMED = msgspec.json.Decoder(_Named)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_PARTS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_NOTHING = b"null"
_MESSAGE = b'"message"'


class KeptItem:
    """An item of what a response answers, by its place there. What may be large in it stays JSON.

    Shown with an id and a type; a message's text is a part, as OpenAI shows it.
    """

    def __init__(self, response_id: str, place: int, item: msgspec.Raw) -> None:
        self._own_id = f"in_{response_id.removeprefix(ID_PREFIX)}_{place}"
        self._item = item

    def id(self) -> str:
        return _NAMED.decode(self._item).id or self._own_id

    def shown(self) -> dict[str, Any]:
        fields = _FIELDS.decode(self._item)
        made: dict[str, Any] = {"id": self._own_id, "type": msgspec.Raw(_MESSAGE), **fields}
        content = bytes(made.get("content", b""))
        if bytes(made["type"]) == _MESSAGE:
            made.setdefault("status", "completed")
        if content.startswith(b"["):
            made["content"] = [_without_nothing(part) for part in _PARTS.decode(content)]
        elif content.startswith(b'"') and bytes(made["type"]) == _MESSAGE:
            part: dict[str, Any] = {"type": "input_text", "text": fields["content"]}
            if bytes(made.get("role", b"")) == b'"assistant"':
                part = {"type": "output_text", "text": fields["content"], "annotations": []}
            made["content"] = [part]
        return made


def _without_nothing(part: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """The part without the fields that are null."""
    return {name: value for name, value in part.items() if bytes(value) != _NOTHING}
