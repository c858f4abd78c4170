"""Responses that are kept: going on from one, keeping the next, and the record that stands in for
the answer of one in the background."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock_gateway.generate.chunked_reply import Pace
from penstock_gateway.generate.reply import encoder
from penstock_gateway.http.errors import HTTPError, clip
from penstock_gateway.keys.ring import current
from penstock_gateway.request.body import ConversationAmount
from penstock_gateway.request.fields import StreamOptions
from penstock_gateway.responses.conversation import conversation_id, said_in
from penstock_gateway.responses.input_items import InputItem, without_nothing
from penstock_gateway.responses.items import OutputItem
from penstock_gateway.responses.reply import ID_PREFIX, Response
from penstock_gateway.responses.request import STATELESS, ResponsesRequest
from penstock_gateway.service import Service
from penstock_gateway.storage.chains import BrokenChain, UnfitChain

LARGE = 1 << 20
"""Bytes."""
_ITEMS = msgspec.json.Decoder(list[InputItem])
_RAW_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])


class _Named(msgspec.Struct):
    id: str


class _Output(msgspec.Struct):
    output: list[InputItem]
    id: str = ""
    status: str = "completed"
    conversation: _Named | None = None


GONE_ON_FROM = ("completed", "incomplete")
_OUTPUT = msgspec.json.Decoder(_Output)


class _RawOutput(msgspec.Struct):
    output: list[msgspec.Raw]


_RAW_OUTPUT = msgspec.json.Decoder(_RawOutput)


async def conversation_before(
    service: Service, request: ResponsesRequest, owner: str, own_id: str
) -> list[InputItem]:
    """What was said up to the response that a request goes on from, or in its conversation; empty
    where it goes on from none. It may be as large as a request that brings all of it.

    own_id: of the response to come. Raises InvalidRequest, and HTTPError 404 where the response
    that it goes on from isn't there."""
    previous, conversation = request.previous_response_id, conversation_id(request)
    if conversation is not None:
        return await said_in(service, request, conversation, owner, own_id)
    if previous is None:
        return []
    records = service.kept_responses
    if records is None:
        raise InvalidRequest(
            f"previous_response_id is {clip(previous)}, but {STATELESS}; allowed: null",
            param="previous_response_id",
            code="unsupported_value",
        )
    try:
        most = service.config.max_body_bytes
        links = await records.conversation(owner, previous, most=most, own_id=own_id)
    except BrokenChain as broken:
        whose = "" if broken.id == previous else f", which {clip(previous)} goes on from,"
        raise HTTPError(
            404,
            f"the response {clip(broken.id)}{whose} is not there{service.why_lost}",
            param="previous_response_id",
            code="response_not_found",
        ) from None
    except UnfitChain as unfit:
        raise InvalidRequest(
            f"the conversation of {clip(previous)} {unfit}", param="previous_response_id"
        ) from None
    said: list[InputItem] = []
    amount, what = ConversationAmount(sum(len(items) for items, _ in links)), clip(previous)
    for items, response in links:
        await amount.add(
            items.encode(), f"the conversation of {what}", param="previous_response_id"
        )
        said += _ITEMS.decode(items)
        await asyncio.sleep(0)
        answered = _OUTPUT.decode(response)
        if answered.status not in GONE_ON_FROM:
            raise InvalidRequest(
                f"the response {clip(answered.id)} is {answered.status}; a request can continue "
                f"only a response that is {' or '.join(GONE_ON_FROM)}",
                param="previous_response_id",
                code="response_not_ended",
            )
        if answered.conversation is not None:
            raise InvalidRequest(
                f"the response {clip(answered.id)} belongs to the conversation "
                f"{clip(answered.conversation.id)}; continue that, with the field conversation",
                param="previous_response_id",
            )
        said += answered.output
        await asyncio.sleep(0)
    return said


async def input_of(service: Service, owner: str, id: str) -> list[msgspec.Raw]:
    """All that a stored response answers: the items, as JSON, of the conversation before it, and
    what its request brought. Raises HTTPError 404 where it, or a response that it goes on from,
    isn't there."""
    records = service.kept_responses
    if records is None:
        raise HTTPError(404, STATELESS, code="storage_off")
    try:
        most = service.config.max_body_bytes
        links = await records.conversation(owner, id, most=most, own_id="")
    except BrokenChain as broken:
        whose = f"there is no response {clip(id)}"
        if broken.id != id:
            whose = f"the response {clip(broken.id)}, which {clip(id)} goes on from, is not there"
        raise HTTPError(404, whose + service.why_lost, code="response_not_found") from None
    except UnfitChain as unfit:
        raise InvalidRequest(f"the conversation of {clip(id)} {unfit}") from None
    said: list[msgspec.Raw] = []
    for place, (items, response) in enumerate(links):
        said += _RAW_ITEMS.decode(items)
        await asyncio.sleep(0)
        if place + 1 < len(links):
            said += _RAW_OUTPUT.decode(response).output
            await asyncio.sleep(0)
    return said


def keeps(service: Service, request: ResponsesRequest) -> bool:
    """Whether the response will be kept: where the server does, unless the request says no. The
    lines of batches have to say yes: thousands of them would push out what people go on from."""
    if service.kept_responses is None:
        return False
    return request.store is True or (request.store is None and not current.get().background)


async def keep(
    service: Service, request: ResponsesRequest, owner: str, id: str, response: list[bytes]
) -> bool:
    """response: as it goes out, one that `keeps`, in pieces. False: the storage can't keep it now.
    Raises HTTPError 503 for that where the request demands it."""
    records = service.kept_responses
    if records is None:
        return False
    whole = await _joined(response)
    items = await items_of(request)
    try:
        await records.save(owner, id, request.previous_response_id, items, whole)
    except HTTPError as error:
        if request.store is True or error.status != 503:
            raise
        return False
    return True


async def _joined(pieces: list[bytes]) -> str:
    """The pieces as one text; if they are large, a thread joins them, which gives up the
    interpreter's lock."""
    if sum(map(len, pieces)) <= LARGE:
        return b"".join(pieces).decode()
    joined = await asyncio.to_thread(b"".join, pieces)
    return joined.decode()


async def items_of(request: ResponsesRequest) -> str:
    """What the request brought itself, as a JSON list. Others have their turn meanwhile: there may
    be tens of thousands of items."""
    own = request.input
    items = [InputItem(role="user", content=own)] if isinstance(own, str) else own or []
    written, pace = [], Pace()
    for item in items:
        written.append(msgspec.json.encode(without_nothing(item)).decode())
        await pace.rest()
    return f"[{','.join(written)}]"


def check_background(service: Service, request: ResponsesRequest) -> None:
    """Raises InvalidRequest for a response in the background that can't be one."""
    if service.store is None or service.store.background is None or not keeps(service, request):
        raise InvalidRequest(
            "background: true needs stored responses: store must not be false, and the server must "
            "run with --stored-response-hours",
            param="background",
            code="unsupported_value",
        )


async def begin_background(
    service: Service,
    request: ResponsesRequest,
    owner: str,
    response: Response,
    default_seed: int | None,
) -> bytes:
    """Puts it on record, for a runner to answer. response: as it would begin.  default_seed: the
    server's own.  Raises HTTPError 429 where the owner has too many."""
    from penstock_gateway.storage.background_records import BackgroundWork

    store = service.stored()
    if store.background is None:
        raise RuntimeError("a response in the background where none is kept")
    response.status, response.background, response.store = "queued", True, True
    if request.stream and request.seed is None:
        # A client that has seen a part of it gets the same text, if it is answered again.
        seed = secrets.randbits(63) if default_seed is None else default_seed
        request = msgspec.structs.replace(request, seed=seed)
    shown = encoder.encode(response)
    key = current.get().key
    work = BackgroundWork(
        id=response.id,
        owner=owner,
        key_digest="" if key is None else key.sha256.lower(),
        body=_body_of(request, response.id),
        response=shown.decode(),
    )
    most = store.settings.max_background_responses
    items = await items_of(request)
    if not await store.background.add(work, request.previous_response_id, items, most):
        raise HTTPError(
            429,
            f"{most} background responses are open, the maximum",
            type="rate_limit_error",
            code="too_many_background_responses",
        )
    return shown


def _body_of(request: ResponsesRequest, id: str) -> str:
    """The request whose answer has that id, and is not kept by itself."""
    options = request.stream_options
    if request.stream and conversation_id(request) is None:
        options = msgspec.structs.replace(options or StreamOptions(), resumable=True)
    asked = msgspec.structs.replace(
        request,
        background=None,
        store=False,
        request_id=id.removeprefix(ID_PREFIX),
        stream_options=options,
    )
    said = {
        name: value for name, value in msgspec.structs.asdict(asked).items() if value is not None
    }
    return msgspec.json.encode(said).decode()


def moved_response(response: str, status: str) -> str:
    """A response with another status. response: JSON."""
    return _changed(response, status=status)


def begun_response(response: str, items: list[OutputItem]) -> str:
    """A response in progress, with what there is of the answer so far. response: JSON."""
    return _changed(response, status="in_progress", output=items)


def ended_response(response: str, answer: bytes) -> str:
    """What was answered, under the name of what was asked for. Both JSON."""
    begun = msgspec.json.decode(response)
    found: dict[str, Any] = msgspec.json.decode(answer)
    own = {name: begun[name] for name in ("id", "created_at", "background", "store")}
    return msgspec.json.encode({**found, **own}).decode()


def failed_response(response: str, status: int, answer: bytes, message: str = "") -> str:
    """A response as far as it came, which was answered with an error. answer: the error's body.
    message: in place of what that says."""
    try:
        reason = msgspec.json.decode(answer)["error"]["message"]
    except (msgspec.DecodeError, LookupError, TypeError):
        reason = "internal error"
    code = "rate_limit_exceeded" if status == 429 else "invalid_prompt"
    if status >= 500 or b'"model_changed"' in answer:
        code = "server_error"
    error = {"code": code, "message": message or str(reason)}
    return _changed(response, status="failed", error=error)


def _changed(response: str, **changes: Any) -> str:
    return encoder.encode({**msgspec.json.decode(response), **changes}).decode()
