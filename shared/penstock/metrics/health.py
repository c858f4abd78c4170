"""What a health check is answered."""

from __future__ import annotations

import os

import msgspec


class Health(msgspec.Struct, frozen=True):
    """ok: whether the answer is 200, else 503.  reason: why not, else empty.  pid: of the process
    that answers: the supervisor, which has no key, tells several gateways apart by it."""

    ok: bool
    reason: str
    pid: int


def answer(reason: str | None) -> tuple[int, bytes]:
    """Status and JSON body. reason: why the answer is no; None: it is yes."""
    body = msgspec.json.encode(Health(reason is None, reason or "", os.getpid()))
    return (200 if reason is None else 503), body
