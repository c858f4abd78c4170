"""For whom, how soon and until when: from headers and body to Terms.

A tenant is whoever sends the same API key.  What travels is a digest of it, so that the key is in
no message and no log; nothing that a client names can make it another tenant.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec
from starlette.types import Scope

from penstock.errors import InvalidRequest
from penstock.terms import MAX_DEADLINE_MS, Terms
from penstock_gateway.errors import clip
from penstock_gateway.openai.fields import RequestFields

TENANT_DIGITS = 32
"""Hex digits of the key's SHA-256 that name a tenant."""


class TermsHeaders(NamedTuple):
    """tenant: the digest of the API key, empty without one.  deadline_ms: of x-deadline-ms."""

    tenant: str
    deadline_ms: int | None


def terms_headers(scope: Scope) -> TermsHeaders:
    """Raises InvalidRequest for a deadline that is none."""
    tenant, deadline_ms = "", None
    for name, value in scope["headers"]:
        if name == b"authorization":
            tenant = tenant_of(value)
        elif name == b"x-deadline-ms":
            deadline_ms = _milliseconds(value)
    return TermsHeaders(tenant, deadline_ms)


def tenant_of(authorization: bytes) -> str:
    """The tenant that an Authorization header stands for; empty for one without a bearer key."""
    scheme, _, key = authorization.partition(b" ")
    key = key.strip()
    if scheme.lower() != b"bearer" or not key:
        return ""
    return hashlib.sha256(key).hexdigest()[:TENANT_DIGITS]


def request_terms(request: RequestFields, headers: TermsHeaders, arrived: float) -> Terms:
    """arrived: when the request's headers had come, monotonic; from then on its time runs.

    Of two deadlines the earlier counts.  Raises InvalidRequest.
    """
    given = [ms for ms in (headers.deadline_ms, request.deadline_ms) if ms is not None]
    terms = Terms.checked(
        tenant=headers.tenant,
        priority=request.priority or 0,
        deadline_ms=min(given, default=None),
        cache_salt=request.cache_salt or "",
    )
    if terms.deadline is None:
        return terms
    return msgspec.structs.replace(terms, deadline=arrived + min(given) / 1000)


def _milliseconds(value: bytes) -> int:
    if not value.isdigit() or len(value) > 12 or not 0 < int(value) <= MAX_DEADLINE_MS:
        shown = clip(value.decode("latin-1"), 40)
        raise InvalidRequest(
            f"x-deadline-ms is {shown}; it must be a whole number in [1, {MAX_DEADLINE_MS}]",
            param="x-deadline-ms",
        )
    return int(value)
