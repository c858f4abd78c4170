"""The part of a request that a gateway needs to route it: all but its large fields."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock_gateway.request.fields import RequestFields

LIGHT = 1024
"""Bytes of a field that is kept whatever it is for."""
KEPT = frozenset(RequestFields.__struct_fields__)
"""Fields by which any request is routed, and on whose terms."""
LONGEST = 1 << 16
"""Characters of such a field; what is longer is refused, however it goes on."""


def light_request(request: msgspec.Struct) -> tuple[bytes, list[str]]:
    """JSON of the fields that differ from their defaults and are not large, and the names of those
    that are."""
    kept: dict[str, Any] = {}
    dropped: list[str] = []
    for field in msgspec.structs.fields(request):
        value = getattr(request, field.name)
        if not _is_required(field) and value == field.default:
            continue
        if field.name in KEPT:
            kept[field.encode_name] = value[:LONGEST] if isinstance(value, str) else value
            continue
        written = msgspec.json.encode(value)
        if len(written) <= LIGHT:
            kept[field.encode_name] = msgspec.Raw(written)
            continue
        dropped.append(field.name)
        if _is_required(field):
            kept[field.encode_name] = type(value)()
    return msgspec.json.encode(kept), dropped


def _is_required(field: msgspec.structs.FieldInfo) -> bool:
    given = (field.default, field.default_factory)
    return all(each is msgspec.NODEFAULT for each in given)
