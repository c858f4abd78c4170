"""/v1/responses. A request contains its whole conversation or, if the server stores responses,
continues one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response as HTTPResponse
from starlette.types import Receive, Scope, Send

from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock.request.terms import Terms
from penstock_gateway.chat.prepared_chat import prepared_chat
from penstock_gateway.generate.endpoint import GenerateEndpoint
from penstock_gateway.generate.job import Job, PreparedRequest
from penstock_gateway.generate.reply import ReplyHead
from penstock_gateway.generate.timeline import TimelineRecorder
from penstock_gateway.http.errors import HTTPError, clip
from penstock_gateway.http.events import EventStream, room_of, stream_while_connected
from penstock_gateway.http.operations import (
    SIGNED_HEADERS,
    Operation,
    OperationRoute,
    asked,
    posting,
)
from penstock_gateway.http.replies import send_json
from penstock_gateway.models.backend import AskedModel, EngineInfo
from penstock_gateway.request.fields import tenant_of
from penstock_gateway.request.sampling import room_for_output
from penstock_gateway.responses.chat_translation import ChatTranslation
from penstock_gateway.responses.conversation import add_turn, conversation_id
from penstock_gateway.responses.inputs import INCLUDE
from penstock_gateway.responses.memory import (
    begin_background,
    check_background,
    conversation_before,
    keep,
    keeps,
    moved_response,
)
from penstock_gateway.responses.output import failure
from penstock_gateway.responses.references import with_items
from penstock_gateway.responses.replay import OPEN, follow
from penstock_gateway.responses.reply import ID_PREFIX, Response, ResponsesFormat, ResponsesSpec
from penstock_gateway.responses.request import STATELESS, ResponsesRequest, check
from penstock_gateway.service import Service

if TYPE_CHECKING:
    from penstock_gateway.storage.background_records import BackgroundRecords
    from penstock_gateway.storage.held_responses import HeldResponses
    from penstock_gateway.storage.response_records import ResponseRecords

OPERATION = posting(
    "/v1/responses",
    "Answer a conversation",
    ResponsesRequest,
    Response,
    streams=True,
    traced_as="chat",
    headers=SIGNED_HEADERS,
)
ONE = Operation(
    method="GET",
    path="/v1/responses/{id}",
    summary="Retrieve a stored response",
    tag="generate",
    reply=Response,
    statuses=(404,),
    streams=True,
    query={
        "stream": (
            "true: the events that tell of it, to its end.",
            {"type": "boolean", "default": False},
        ),
        "starting_after": (
            "Of a stream: the number of the last event already received.",
            {"type": "integer", "minimum": 0},
        ),
        "include": INCLUDE,
        "include_obfuscation": ("Accepted; events have none.", {"type": "boolean"}),
    },
)


class ResponseDeleted(msgspec.Struct, frozen=True, tag_field="object", tag="response"):
    id: str
    deleted: bool = True


DELETE = Operation(
    method="DELETE",
    path="/v1/responses/{id}",
    summary="Delete a stored response",
    tag="generate",
    reply=ResponseDeleted,
    statuses=(404,),
)
CANCEL = Operation(
    method="POST",
    path="/v1/responses/{id}/cancel",
    summary="Cancel a background response",
    tag="generate",
    reply=Response,
    statuses=(404, 409),
)


def _truncation(request: ResponsesRequest, context: int) -> tuple[int, str] | None:
    """The most tokens of the prompt, where the oldest items may be left out, and the reason."""
    if request.truncation != "auto":
        return None
    output = request.max_output_tokens or 1
    return max(context - output, 1), "truncation is auto"


class Responses(GenerateEndpoint[ResponsesRequest]):
    """POST /v1/responses: answers one conversation."""

    request_type = ResponsesRequest
    reply_spec = ResponsesSpec
    id_prefix = ID_PREFIX
    gives_receipts = True
    replayable = True

    def check(self, request: ResponsesRequest) -> None:
        check(request)
        if request.background:
            check_background(self._service, request)

    def replays(self, request: ResponsesRequest) -> bool:
        """One in the background is found again by its id."""
        return not request.background

    def failure(self, error: HTTPError) -> bytes:
        return failure(error)

    async def prepare(
        self, request: ResponsesRequest, engine: EngineInfo, head: ReplyHead, lease: MediaLease
    ) -> PreparedRequest:
        request = await with_items(self._service, request, lease.tenant)
        before = await conversation_before(self._service, request, lease.tenant, head.id)
        conversation = ChatTranslation(request, before)
        limits, own = engine.welcome.limits, engine.welcome.generation.max_new_tokens

        def most(prompt_tokens: int) -> int:
            return room_for_output(
                prompt_tokens,
                request.max_output_tokens,
                own,
                limits,
                field="max_output_tokens",
                source="input",
                oversized=engine.config.oversized_max_tokens,
            )

        chat_request = conversation.chat
        chat = await prepared_chat(
            self._service,
            chat_request,
            engine,
            lease,
            max_tokens=most,
            own_words=conversation.own_words,
            now=head.created,
            tools=conversation.tools.limits,
            logprobs=(chat_request.top_logprobs or 0) if chat_request.logprobs else None,
            truncation=_truncation(request, limits.max_model_len),
        )
        stored = keeps(self._service, request)
        return chat.answered_by(
            ResponsesSpec.of(request, chat.params, conversation.tools, chat.parsing, stored=stored)
        )

    async def _whole(
        self, request: ResponsesRequest, terms: Terms, recorder: TimelineRecorder
    ) -> list[bytes]:
        if request.background:
            return [await self._begin(request, terms, recorder)]
        return await super()._whole(request, terms, recorder)

    async def _answered(
        self, job: Job, asked: AskedModel, terms: Terms, recorder: TimelineRecorder
    ) -> list[bytes]:
        pieces = await super()._answered(job, asked, terms, recorder)
        reply, owner = _format_of(job), terms.tenant
        await add_turn(self._service, reply.request, owner, pieces)
        if reply.response.store:
            id = reply.response.id
            if not await keep(self._service, reply.request, owner, id, pieces):
                reply.response.store = False
                return reply.encoded()
        return pieces

    async def _stream(
        self,
        request: ResponsesRequest,
        terms: Terms,
        recorder: TimelineRecorder,
        events: EventStream,
    ) -> None:
        if not request.background:
            await super()._stream(request, terms, recorder, events)
            return
        service, owner = self._service, terms.tenant
        with service.followers.one(owner):
            begun = await self._begin(request, terms, recorder)
            id, records = msgspec.json.decode(begun, type=_Named).id, _records(service)
            await follow(lambda: records.find(owner, id), -1, events, lambda: service.draining)

    async def _begin(
        self, request: ResponsesRequest, terms: Terms, recorder: TimelineRecorder
    ) -> bytes:
        """Begins an answer in the background: raises now for all that can be wrong with the
        request."""
        async with self._service.models.using(request.model, terms.deadline) as model:
            recorder.waited(model.waited)
            with self._service.media.lease(terms.tenant, terms.deadline) as lease:
                reply = _format_of(await self._job(request, model, lease))
        request = msgspec.structs.replace(reply.request, penstock_receipt=recorder.receipt or None)
        seed = model.engine.welcome.seed
        return await begin_background(self._service, request, terms.tenant, reply.response, seed)

    async def _events(
        self,
        job: Job,
        asked: AskedModel,
        request: ResponsesRequest,
        terms: Terms,
        recorder: TimelineRecorder,
        events: EventStream,
    ) -> None:
        reply = _format_of(job)
        whole_request, conversation = reply.request, conversation_id(request)
        if reply.response.store or conversation:

            async def keep_it() -> None:
                if reply.response.status not in ("completed", "incomplete"):
                    return
                id, whole, owner = reply.response.id, reply.encoded(), terms.tenant
                try:
                    await add_turn(self._service, whole_request, owner, whole)
                    kept = not reply.response.store or await keep(
                        self._service, whole_request, owner, id, whole
                    )
                except HTTPError:
                    await events.write(reply.without_end())
                    raise
                if not kept:
                    reply.end_not_kept()

            events.before_last = keep_it
        await super()._events(job, asked, request, terms, recorder, events)


def _format_of(job: Job) -> ResponsesFormat:
    """What writes the response, also where a receipt is written with it."""
    reply = getattr(job.reply, "unsigned", job.reply)
    if not isinstance(reply, ResponsesFormat):
        raise RuntimeError("a response that is written as something else")
    return reply


class Retrieval:
    """An ASGI application: it may answer with a stream."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, records = Request(scope), _records(self._service)
        id, owner, after = request.path_params["id"], tenant_of(scope), -1
        given = asked(request, "starting_after")
        if given is not None and not asked(request, "stream"):
            raise InvalidRequest("starting_after needs stream=true", param="starting_after")
        found = _there(self._service, await records.find(owner, id), id)
        if not asked(request, "stream"):
            await send_json(send, 200, found)
            return
        after = -1 if given is None else given
        events = EventStream(
            send,
            keepalive=self._service.config.keepalive_interval,
            room=room_of(scope),
            failure=failure,
        )
        service = self._service
        with service.answering, service.followers.one(owner):
            work = follow(lambda: records.find(owner, id), after, events, lambda: service.draining)
            await stream_while_connected(work, receive, events)


def routes(service: Service) -> list[OperationRoute]:
    """The four routes of responses."""

    async def delete(request: Request) -> HTTPResponse:
        id, records, owner = request.path_params["id"], _records(service), tenant_of(request.scope)
        if not await records.remove(owner, id):
            _there(service, None, id)
        if service.store is not None and service.store.background is not None:
            await service.store.background.cancel(owner, id, None)
        return _json(msgspec.json.encode(ResponseDeleted(id)))

    async def cancel(request: Request) -> HTTPResponse:
        id, records, owner = request.path_params["id"], _records(service), tenant_of(request.scope)
        found = await records.find(owner, id) or ""
        if not found or msgspec.json.decode(found, type=_InBackground).status in OPEN:
            cancelled = moved_response(_there(service, found or None, id).decode(), "cancelled")
            if await _background(service).cancel(owner, id, cancelled):
                return _json(cancelled.encode())
        now = _there(service, await records.find(owner, id), id)
        if msgspec.json.decode(now, type=_InBackground).background:
            return _json(now)  # It has ended meanwhile, or was cancelled before.
        raise HTTPError(
            409,
            f"the response {clip(id)} has ended; only a background response can be cancelled by "
            "its id, and a streamed one ends when its connection closes",
            code="response_ended",
        )

    return [
        OPERATION.route(Responses(service)),
        ONE.route(Retrieval(service)),
        DELETE.route(delete),
        CANCEL.route(cancel),
    ]


def _records(service: Service) -> ResponseRecords | HeldResponses:
    records = service.kept_responses
    if records is None:
        raise HTTPError(404, STATELESS, code="storage_off")
    return records


def _background(service: Service) -> BackgroundRecords:
    records = None if service.store is None else service.store.background
    if records is None:
        raise HTTPError(404, STATELESS, code="storage_off")
    return records


class _Named(msgspec.Struct):
    id: str


class _InBackground(msgspec.Struct):
    background: bool = False
    status: str = ""


def _there(service: Service, response: str | None, id: str) -> bytes:
    if response is None:
        what = f"there is no response {clip(id)}{service.why_lost}"
        raise HTTPError(404, what, code="response_not_found")
    return response.encode()


def _json(payload: bytes) -> HTTPResponse:
    return HTTPResponse(payload, media_type="application/json")
