"""Tells engine cores to pause or to go on, and waits until they have."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.client.session import EngineSession
from penstock.client.telling import all_able, tell_all
from penstock.protocol.from_frontend import SetPaused

PATIENCE = 60.0
"""Seconds that a step may take which has to end first."""


async def set_paused(sessions: Sequence[EngineSession], *, paused: bool, abort: bool) -> None:
    """abort: open requests of all front ends end as they are.

    Raises InvalidRequest where an engine core of another version can't, and EngineUnavailable where
    there is none, or one doesn't within PATIENCE: those that did have been told."""
    connected = all_able(sessions, lambda welcome: welcome.pauses, "can't be paused")
    await tell_all(
        connected,
        SetPaused(paused, abort),
        lambda session: session.paused is paused,
        within=PATIENCE,
        what="paused" if paused else "resumed",
    )


def all_paused(sessions: Sequence[EngineSession]) -> bool:
    """Whether there are engine cores, and all of them are paused."""
    connected = [session for session in sessions if session.connected]
    return bool(connected) and all(session.paused for session in connected)
