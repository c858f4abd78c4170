"""On what terms a request is served: for whom, how soon, until when, sharing KV with whom."""

from __future__ import annotations

import hashlib
import math
import time

import msgspec

from penstock.errors import DeadlineExceeded, InvalidRequest
from penstock.protocol.common import (
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    MAX_KV_RETENTION_S,
    MAX_SESSION_ID_CHARS,
    AdapterFile,
    Claim,
    Grant,
    SessionTerms,
)

MAX_SALT_LENGTH = 1024
"""Characters of a cache salt."""

MAX_DEADLINE_MS = 86_400_000
"""Longest deadline: a day."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """tenant: whose request it is; empty: of none.  priority: lower is sooner.
    deadline: on this process's monotonic clock, seconds; None: whenever.  cache_salt: of a tenant's
    requests, those with the same salt may use each other's KV blocks.
    grant: the tenant's limits; None: those that the engine core was started with.
    adapter: that is applied to the model; None: the model alone.  background: nobody waits for it,
    so it stands after all that somebody waits for.  session: the conversation that it is a turn of;
    None: of none.  claim: the key that its answer is found again by; None: it isn't.  shared: equal
    requests that are open at once may be computed once.  fingerprint: the only one that it may be
    computed with; None: any."""

    tenant: str = ""
    priority: int = 0
    deadline: float | None = None
    cache_salt: str = ""
    grant: Grant | None = None
    adapter: AdapterFile | None = None
    background: bool = False
    session: SessionTerms | None = None
    claim: Claim | None = None
    shared: bool = False
    fingerprint: str | None = None

    def time_left_ms(self, now: float) -> int | None:
        """What is left of the deadline, in whole milliseconds, at least 0."""
        return None if self.deadline is None else max(0, round(1000 * (self.deadline - now)))

    def unclaimed(self) -> Terms:
        """The terms of a request whose answer isn't found again."""
        return self if self.claim is None else msgspec.structs.replace(self, claim=None)

    @classmethod
    def checked(
        cls,
        *,
        tenant: str = "",
        priority: int = 0,
        deadline_ms: float | None = None,
        cache_salt: str = "",
        session: SessionTerms | None = None,
    ) -> Terms:
        """Terms with a deadline so many milliseconds from now. Raises InvalidRequest."""
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise InvalidRequest(f"priority must be a whole number, not {priority!r}")
        if not HIGHEST_PRIORITY <= priority <= LOWEST_PRIORITY:
            raise InvalidRequest(
                f"priority must lie in {HIGHEST_PRIORITY} (served first) to {LOWEST_PRIORITY}, "
                f"not {priority}",
                param="priority",
            )
        if not isinstance(cache_salt, str) or len(cache_salt) > MAX_SALT_LENGTH:
            raise InvalidRequest(
                f"cache_salt must be text of at most {MAX_SALT_LENGTH} characters",
                param="cache_salt",
            )
        if deadline_ms is None:
            return cls(tenant=tenant, priority=priority, cache_salt=cache_salt, session=session)
        if isinstance(deadline_ms, bool) or not 0 < deadline_ms <= MAX_DEADLINE_MS:
            raise InvalidRequest(
                f"deadline_ms must lie in 1 to {MAX_DEADLINE_MS} milliseconds, not {deadline_ms!r}",
                param="deadline_ms",
            )
        deadline = time.monotonic() + deadline_ms / 1000
        return cls(
            tenant=tenant,
            priority=priority,
            deadline=deadline,
            cache_salt=cache_salt,
            session=session,
        )

    def after_resets(self, count: int) -> Terms:
        """The terms under which nothing is shared with requests before the `count`-th reset of the
        prefix cache."""
        if count == 0:
            return self
        salt = hashlib.sha256(f"{count} resets\0{self.cache_salt}".encode()).hexdigest()
        return msgspec.structs.replace(self, cache_salt=salt)

    def check_time(self) -> None:
        """Raises DeadlineExceeded once the deadline has passed."""
        if self.time_left_ms(time.monotonic()) == 0:
            raise DeadlineExceeded("the request's deadline passed before it was accepted")


def checked_session(
    session_id: str | None, retention_s: float | None = None, resume_within_s: float | None = None
) -> SessionTerms | None:
    """What a request says of its session; None for nothing. Raises InvalidRequest."""
    if not session_id:
        for name, value in (("kv_retention_seconds", retention_s), ("kv_hint", resume_within_s)):
            if value is not None:
                raise InvalidRequest(f"{name} needs a session_id", param=name)
        return None
    if len(session_id) > MAX_SESSION_ID_CHARS:
        raise InvalidRequest(
            f"session_id has {len(session_id)} characters; at most {MAX_SESSION_ID_CHARS} are "
            "allowed",
            param="session_id",
        )
    check_seconds("kv_retention_seconds", retention_s)
    check_seconds("kv_hint.resume_within_s", resume_within_s)
    return SessionTerms(session_id, retention_s, resume_within_s)


def check_seconds(name: str, value: float | None, most: float = MAX_KV_RETENTION_S) -> None:
    """Raises InvalidRequest for a time that a session can't have."""
    if value is not None and not (math.isfinite(value) and 0 <= value <= most):
        raise InvalidRequest(
            f"{name} is {value:g}; it must lie in 0 to {most:g} seconds", param=name.split(".")[0]
        )
