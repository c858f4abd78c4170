"""Messages that are sent to all engine cores at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

from penstock.client.session import EngineSession
from penstock.errors import EngineUnavailable, InvalidRequest
from penstock.protocol.from_frontend import FromFrontend
from penstock.protocol.to_frontend import Welcome

LOOK = 0.02
"""Seconds between looks at what engine cores have said."""


def all_able(
    sessions: Iterable[EngineSession], able: Callable[[Welcome], bool], cannot: str
) -> list[EngineSession]:
    """The sessions that are connected. cannot: said of an engine core of another version.

    Raises InvalidRequest where one isn't able, and EngineUnavailable where there is none."""
    connected = [session for session in sessions if session.connected]
    if not connected:
        raise EngineUnavailable("there is no session with an engine core at the moment")
    for session in connected:
        if session.welcome is None or not able(session.welcome):
            raise InvalidRequest(f"the engine core at {session.endpoint} {cannot}")
    return connected


async def tell_all(
    connected: Sequence[EngineSession],
    message: FromFrontend,
    done: Callable[[EngineSession], bool],
    *,
    within: float,
    what: str,
) -> None:
    """Returns once all have done it. within: seconds.  what: they have then.

    Raises EngineUnavailable where one doesn't in time, or is gone: others may have done it."""
    for session in connected:
        session.send(message)
    give_up = time.monotonic() + within
    while not all(done(session) for session in connected):
        if time.monotonic() > give_up or not all(session.connected for session in connected):
            raise EngineUnavailable(f"not all engine cores have {what}; try again")
        await asyncio.sleep(LOOK)
