"""Has engine cores give a model's memory back, or take it again, and waits until they have."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from penstock.client.session import EngineSession
from penstock.client.telling import all_able, tell_all
from penstock.errors import EngineUnavailable, InvalidRequest
from penstock.protocol.common import WAKE_TAGS, WakeTag
from penstock.protocol.from_frontend import FromFrontend, PutToSleep, WakeUp

LEVELS = (1, 2)

PATIENCE = 600.0
"""Seconds that loading a model may take, or the steps that have to end first."""

MISSING_PATIENCE = 60.0
"""Seconds without a worker after which nobody waits for what one is to do: it stands still, or
can't be started."""


def sleep_level(given: Any) -> Literal[1, 2]:
    """Raises InvalidRequest for what isn't one."""
    if given == 0 and not isinstance(given, bool):
        raise InvalidRequest(
            "level is 0; allowed: 1, 2; a pause does no more than that", param="level"
        )
    if given not in LEVELS or isinstance(given, bool):
        raise InvalidRequest(f"level is {given!r}; allowed: 1, 2", param="level")
    return cast(Literal[1, 2], given)


def wake_tags(given: Sequence[str] | None) -> list[WakeTag]:
    """Empty: all. Raises InvalidRequest for one that there isn't."""
    unknown = [tag for tag in given or () if tag not in WAKE_TAGS]
    if isinstance(given, str) or unknown:
        wrong = given if isinstance(given, str) else unknown[0]
        raise InvalidRequest(
            f"tags has {str(wrong)[:40]!r}; allowed: {', '.join(WAKE_TAGS)}", param="tags"
        )
    return cast(list[WakeTag], list(dict.fromkeys(given or ())))


async def put_to_sleep(
    sessions: Sequence[EngineSession], level: Literal[1, 2], *, abort: bool
) -> None:
    """Returns once memory has gone back. abort: open requests of all front ends end as they are.

    Raises InvalidRequest where an engine core of another version can't, and EngineUnavailable where
    there is none, has had no worker for MISSING_PATIENCE, or doesn't within PATIENCE: those that
    did sleep, and the others will when they can."""

    def asleep(session: EngineSession) -> bool:
        return session.asleep and session.sleeping >= level

    await _tell(sessions, PutToSleep(level, abort), asleep, "fallen asleep")


async def wake_up(sessions: Sequence[EngineSession], tags: Sequence[WakeTag] = ()) -> bool:
    """Returns once the model is loaded, or waits for the other tag. Whether it is awake. Raises as
    put_to_sleep."""

    def done(session: EngineSession) -> bool:
        heard = bool(tags) and set(tags) <= set(session.waking)
        return heard or (session.ready and not session.sleeping)

    await _tell(sessions, WakeUp(list(tags)), done, "woken up")
    return not any_sleeping(sessions)


def any_sleeping(sessions: Sequence[EngineSession]) -> bool:
    """Whether the model of an engine core sleeps, or is about to."""
    return any(session.connected and session.sleeping for session in sessions)


class _Missed:
    """Since when workers are missing, by engine core."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def look(self, session: EngineSession) -> None:
        """Raises EngineUnavailable where they have been for too long."""
        now, missing = time.monotonic(), session.missing_workers
        if not missing:
            self._since.pop(session.endpoint, None)
        elif now - self._since.setdefault(session.endpoint, now) > MISSING_PATIENCE:
            ranks = ", ".join(map(str, missing))
            raise EngineUnavailable(
                f"the engine core at {session.endpoint} has had no worker of rank {ranks} for "
                f"{MISSING_PATIENCE:g} s; it does what it was told when there is one"
            )


async def _tell(
    sessions: Sequence[EngineSession],
    message: FromFrontend,
    done: Callable[[EngineSession], bool],
    what: str,
) -> None:
    missed = _Missed()

    def done_or_missed(session: EngineSession) -> bool:
        if done(session):
            return True
        missed.look(session)
        return False

    connected = all_able(sessions, lambda welcome: welcome.sleeps, "can't sleep")
    await tell_all(connected, message, done_or_missed, within=PATIENCE, what=what)
