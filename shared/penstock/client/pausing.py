"""Tells engine cores to pause or to go on, and waits until they have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from penstock.client.session import EngineSession
from penstock.errors import EngineUnavailable, InvalidRequest
from penstock.protocol.from_frontend import SetPaused

PATIENCE = 60.0
"""Seconds that a step may take which has to end first."""
LOOK = 0.02
"""Seconds between looks at what engine cores have said."""


async def set_paused(sessions: Sequence[EngineSession], *, paused: bool, abort: bool) -> None:
    """abort: open requests of all front ends end as they are.

    Raises InvalidRequest where an engine core of another version can't, and EngineUnavailable where
    there is none, or one doesn't within PATIENCE: those that did have been told."""
    connected = [session for session in sessions if session.connected]
    if not connected:
        raise EngineUnavailable("there is no session with an engine core at the moment")
    for session in connected:
        if session.welcome is None or not session.welcome.pauses:
            raise InvalidRequest(f"the engine core at {session.endpoint} can't be paused")
    for session in connected:
        session.send(SetPaused(paused, abort))
    give_up = time.monotonic() + PATIENCE
    while any(session.paused is not paused for session in connected):
        if time.monotonic() > give_up or not all(session.connected for session in connected):
            done = "paused" if paused else "resumed"
            raise EngineUnavailable(f"not all engine cores have {done}; ask again")
        await asyncio.sleep(LOOK)


def all_paused(sessions: Sequence[EngineSession]) -> bool:
    """Whether there are engine cores, and all of them are paused."""
    connected = [session for session in sessions if session.connected]
    return bool(connected) and all(session.paused for session in connected)
