"""Bodies that tell only by their fields which endpoint they are for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.types import Receive, Scope

from penstock_gateway.request.body import check_amount, check_json_type, read_body
from penstock_gateway.request.decoding import decode_fields
from penstock_gateway.request.fields import tenant_of
from penstock_gateway.service import Service

Fields = dict[str, msgspec.Raw]
_fields: msgspec.json.Decoder[Fields] = msgspec.json.Decoder(Fields)


async def read_fields(service: Service, scope: Scope, receive: Receive) -> tuple[bytes, Fields]:
    """The body, and its fields as they are written. Raises InvalidRequest, ClientGone and
    HTTPError."""
    check_json_type(scope)
    limit, patience = service.config.max_body_bytes, service.patience.body
    body = await read_body(
        scope,
        receive,
        limit=limit,
        timeout=patience,
        room=service.bodies,
        tenant=tenant_of(scope),
    )
    await check_amount(body)
    return body, decode_fields(body, _fields)


class _NamesModel(msgspec.Struct):
    model: str | None


_naming = msgspec.json.Decoder(_NamesModel)


def named_model(fields: Mapping[str, Any]) -> str | None:
    """The model that the fields name. Raises InvalidRequest for what is no name."""
    if "model" not in fields:
        return None
    return decode_fields(b'{"model":%b}' % bytes(fields["model"]), _naming).model
