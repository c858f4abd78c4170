"""What a health check is answered."""

from __future__ import annotations

import os

import msgspec


class Health(msgspec.Struct, frozen=True):
    """ok: whether the answer is 200, else 503.  reason: why not, else empty.  pid: of the process
    that answers: the supervisor, which has no key, tells several gateways apart by it.
    status: `ok` or `unavailable`, for llama.cpp's clients."""

    ok: bool
    reason: str
    pid: int
    status: str = "ok"


def answer(reason: str | None) -> tuple[int, bytes]:
    """Status and JSON body. reason: why the answer is no; None: it is yes."""
    ok = reason is None
    health = Health(ok, reason or "", os.getpid(), "ok" if ok else "unavailable")
    return (200 if ok else 503), msgspec.json.encode(health)
