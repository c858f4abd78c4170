"""Which conversation a request belongs to: from body and header to its terms."""

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.protocol.common import SessionTerms
from penstock.request.terms import checked_session


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
