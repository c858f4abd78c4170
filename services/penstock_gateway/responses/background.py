"""Background responses: the record that stands in for an answer, and what becomes of it."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock_gateway.generate.reply import encoder
from penstock_gateway.http.errors import HTTPError
from penstock_gateway.keys.ring import current
from penstock_gateway.responses.items import OutputItem
from penstock_gateway.responses.memory import items_of, keeps
from penstock_gateway.responses.reply import ID_PREFIX, Response
from penstock_gateway.responses.request import ResponsesRequest
from penstock_gateway.service import Service


def check_background(service: Service, request: ResponsesRequest) -> None:
    """Raises InvalidRequest for a response in the background that can't be one."""
    if not keeps(service, request):
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
        # Whoever has seen a part of it goes on with the same text, if it is answered again.
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
    items = items_of(request)
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
    asked = msgspec.structs.replace(
        request, background=None, store=False, request_id=id.removeprefix(ID_PREFIX)
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
        told = msgspec.json.decode(answer)["error"]["message"]
    except (msgspec.DecodeError, LookupError, TypeError):
        told = "internal error"
    code = "rate_limit_exceeded" if status == 429 else "invalid_prompt"
    error = {"code": "server_error" if status >= 500 else code, "message": message or str(told)}
    return _changed(response, status="failed", error=error)


def _changed(response: str, **changes: Any) -> str:
    return encoder.encode({**msgspec.json.decode(response), **changes}).decode()
