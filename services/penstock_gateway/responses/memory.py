"""Responses that are kept: going on from one, and keeping the next."""

from __future__ import annotations

import msgspec

from penstock.errors import InvalidRequest
from penstock_gateway.http.errors import HTTPError, clip
from penstock_gateway.responses.request import STATELESS, InputItem, ResponsesRequest
from penstock_gateway.service import Service

_ITEMS = msgspec.json.Decoder(list[InputItem])


class _Output(msgspec.Struct):
    output: list[InputItem]


_OUTPUT = msgspec.json.Decoder(_Output)


async def conversation_before(
    service: Service, request: ResponsesRequest, owner: str
) -> list[InputItem]:
    """What was said up to the response that a request goes on from; empty where it goes on from
    none. Raises InvalidRequest, and HTTPError 404 where that response isn't there."""
    previous = request.previous_response_id
    if previous is None:
        return []
    records = None if service.store is None else service.store.responses
    if records is None:
        raise InvalidRequest(
            f"previous_response_id is {clip(previous)}, but {STATELESS}; allowed: null",
            param="previous_response_id",
            code="unsupported_value",
        )
    from penstock_gateway.storage.response_records import MAX_LINKS, BrokenChain

    try:
        links = await records.conversation(owner, previous)
    except BrokenChain as broken:
        whose = "" if broken.id == previous else f", which {clip(previous)} goes on from,"
        raise HTTPError(
            404,
            f"the response {clip(broken.id)}{whose} is not there",
            param="previous_response_id",
            code="response_not_found",
        ) from None
    except ValueError:
        raise InvalidRequest(
            f"that conversation has more than {MAX_LINKS} responses, the most that is allowed",
            param="previous_response_id",
        ) from None
    said: list[InputItem] = []
    for items, response in links:
        said += _ITEMS.decode(items)
        said += _OUTPUT.decode(response).output
    return said


def keeps(service: Service, request: ResponsesRequest) -> bool:
    """Whether the response will be kept: where the server does, unless the request says no."""
    kept = service.store is not None and service.store.responses is not None
    return kept and request.store is not False


async def keep(service: Service, request: ResponsesRequest, owner: str, response: bytes) -> None:
    """response: as it goes out, one that `keeps`."""
    records = None if service.store is None else service.store.responses
    if records is None:
        return
    own = request.input
    items = [InputItem(role="user", content=own)] if isinstance(own, str) else own or []
    told = msgspec.json.encode([_without_nothing(item) for item in items]).decode()
    id = msgspec.json.decode(response, type=_Named).id
    await records.save(owner, id, request.previous_response_id, told, response.decode())


class _Named(msgspec.Struct):
    id: str


def _without_nothing(item: InputItem) -> dict[str, object]:
    """Most fields of an item are those of other kinds."""
    return {
        name: value for name, value in msgspec.structs.asdict(item).items() if value is not None
    }
