"""Whose request it is, for as long as it is handled and no longer."""

from __future__ import annotations

from contextlib import suppress

import pytest
from starlette.types import Receive, Scope, Send

from penstock_gateway.keys import ring
from penstock_gateway.keys.ring import CALLER, NOBODY, Access, Caller


async def no_message() -> dict[str, object]:
    raise AssertionError("nothing is read")


async def nowhere(message: object) -> None:
    raise AssertionError("nothing is sent")


@pytest.mark.parametrize("fails", [False, True])
async def test_a_caller_is_nobody_once_its_request_is_over(fails: bool) -> None:
    """A batch's requests are handled one after another in one task."""
    callers: list[Caller] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        callers.append(ring.current.get())
        if fails:
            raise ConnectionError

    access = Access(application, ring=None, limits=None, operations=(), names=list)
    request = {"type": "http", "method": "GET", "path": "/version", "headers": []}
    alice = Caller(None, tenant="alice")
    for more in ({CALLER: alice}, {}):
        with suppress(ConnectionError):
            await access({**request, **more}, no_message, nowhere)
        assert ring.current.get() is NOBODY
    assert callers == [alice, NOBODY]
