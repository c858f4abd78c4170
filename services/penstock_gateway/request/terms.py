"""A request's tenant, priority, deadline and conversation: from headers and body to Terms.

With API keys, the key's entry says which tenant sent the request and what that tenant may use.
Without them, everybody who sends the same key is one tenant, whatever the key. Only a name or a
digest is passed on, so no message and no log contains a key, and nothing else that a client sends
can make it another tenant.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import msgspec
from starlette.types import Scope

from penstock.errors import InvalidRequest
from penstock.protocol.common import Grant, SessionTerms
from penstock.request.api_keys import TENANT_DIGITS, digest_of
from penstock.request.terms import MAX_DEADLINE_MS, Terms, checked_session
from penstock_gateway.http.errors import clip
from penstock_gateway.keys.ring import bearer, current
from penstock_gateway.request import tokenising


class KVHint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is expected of the session. resume_within_s: seconds after the answer in which its next
    request should come, as after a tool's run."""

    resume_within_s: float


class SessionFields(Protocol):
    """What a generating request's body may say of it."""

    @property
    def session_id(self) -> str | None: ...

    @property
    def kv_retention_seconds(self) -> float | None: ...

    @property
    def kv_hint(self) -> KVHint | None: ...


def session_of(request: SessionFields, header: str | None) -> SessionTerms | None:
    """The conversation that a request is a turn of; None if it is of none. header: the value of
    x-session-id, before which the body's field counts. Raises InvalidRequest."""
    hint = request.kv_hint
    return checked_session(
        request.session_id or header,
        request.kv_retention_seconds,
        None if hint is None else hint.resume_within_s,
    )


class TermFields(Protocol):
    """What every request's body may say of these."""

    @property
    def cache_salt(self) -> str | None: ...

    @property
    def priority(self) -> int | None: ...

    @property
    def deadline_ms(self) -> int | None: ...


class TermsHeaders(NamedTuple):
    """tenant: empty for nobody in particular.  grant: what it may have; None: as the engine core
    was told.  deadline_ms: of x-deadline-ms.  background: nobody waits for the answer.
    session_id: of x-session-id."""

    tenant: str
    grant: Grant | None
    deadline_ms: int | None
    background: bool = False
    session_id: str | None = None


def terms_headers(scope: Scope) -> TermsHeaders:
    """Raises InvalidRequest for a deadline that is none."""
    deadline_ms = session_id = None
    for name, value in scope["headers"]:
        if name == b"x-deadline-ms":
            deadline_ms = _milliseconds(value)
        elif name == b"x-session-id":
            session_id = value.decode("latin-1")
    caller = current.get()
    tenant, grant = tenant_of(scope), None if caller.key is None else caller.key.grant
    tokenising.tenant.set(tenant)
    return TermsHeaders(tenant, grant, deadline_ms, caller.background, session_id)


def tenant_of(scope: Scope) -> str:
    """The tenant of the request; empty for none."""
    caller = current.get()
    if caller.key is not None:
        return caller.key.tenant_name
    if caller.tenant is not None:
        return caller.tenant
    sent = bearer(scope)
    return digest_of(sent).hex()[:TENANT_DIGITS] if sent else ""


def request_terms(request: TermFields, headers: TermsHeaders, arrived: float) -> Terms:
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
    deadline = None if terms.deadline is None else arrived + min(given) / 1000
    return msgspec.structs.replace(
        terms, deadline=deadline, grant=headers.grant, background=headers.background
    )


def connection_terms(scope: Scope) -> Terms:
    """Terms of what is asked over a WebSocket, whose deadlines nobody says. Raises
    InvalidRequest."""
    headers = terms_headers(scope)
    terms = Terms.checked(tenant=headers.tenant, priority=0, deadline_ms=None, cache_salt="")
    return msgspec.structs.replace(terms, grant=headers.grant)


def _milliseconds(value: bytes) -> int:
    if not value.isdigit() or len(value) > 12 or not 0 < int(value) <= MAX_DEADLINE_MS:
        shown = clip(value.decode("latin-1"), 40)
        raise InvalidRequest(
            f"x-deadline-ms is {shown}; it must be a whole number in [1, {MAX_DEADLINE_MS}]",
            param="x-deadline-ms",
        )
    return int(value)
