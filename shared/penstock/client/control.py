"""Has all engine cores pause, sleep, go on or call their workers' methods, and waits until they
have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, cast

from penstock.client.session import EngineSession
from penstock.errors import EngineUnavailable, InvalidRequest
from penstock.protocol.call_values import decode_value, encode_value
from penstock.protocol.common import MAX_CALL_SECONDS, MAX_METHOD_CHARS, WAKE_TAGS, WakeTag
from penstock.protocol.from_frontend import (
    CallWorkers,
    FromFrontend,
    HashWeights,
    PutToSleep,
    SetPaused,
    WakeUp,
)
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


PAUSE_PATIENCE = 60.0
"""Seconds that a step may take which has to end first."""


async def set_paused(sessions: Sequence[EngineSession], *, paused: bool, abort: bool) -> None:
    """abort: open requests of all front ends end as they are.

    Raises InvalidRequest where an engine core of another version can't, and EngineUnavailable where
    there is none, or one doesn't acknowledge within PAUSE_PATIENCE; the others have then applied
    it."""
    connected = all_able(sessions, lambda welcome: welcome.pauses, "can't be paused")
    await tell_all(
        connected,
        SetPaused(paused, abort),
        lambda session: session.paused is paused,
        within=PAUSE_PATIENCE,
        what="paused" if paused else "resumed",
    )


def all_paused(sessions: Sequence[EngineSession]) -> bool:
    """Whether there are engine cores, and all of them are paused."""
    connected = [session for session in sessions if session.connected]
    return bool(connected) and all(session.paused for session in connected)


LEVELS = (1, 2)

SLEEP_PATIENCE = 600.0
"""Seconds that loading a model may take, or the steps that have to end first."""

MISSING_PATIENCE = 60.0
"""Seconds without a worker after which its answer isn't waited for any more: it is stuck, or can't
be started."""


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
    there is none, has had no worker for MISSING_PATIENCE, or doesn't within SLEEP_PATIENCE: those
    that did sleep, and the others will when they can."""

    def asleep(session: EngineSession) -> bool:
        return session.asleep and session.sleeping >= level

    await _tell_sleep(sessions, PutToSleep(level, abort), asleep, "fallen asleep")


async def wake_up(sessions: Sequence[EngineSession], tags: Sequence[WakeTag] = ()) -> bool:
    """Returns once the model is loaded, or waits for the other tag. Whether it is awake. Raises as
    put_to_sleep."""

    def done(session: EngineSession) -> bool:
        heard = bool(tags) and set(tags) <= set(session.waking)
        return heard or (session.ready and not session.sleeping)

    await _tell_sleep(sessions, WakeUp(list(tags)), done, "woken up")
    return not any_sleeping(sessions)


def any_sleeping(sessions: Sequence[EngineSession]) -> bool:
    """Whether the model of an engine core sleeps, or is about to."""
    return any(session.connected and session.sleeping for session in sessions)


class _Missed:
    """Notes since when workers are missing, by engine core."""

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


async def _tell_sleep(
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
    await tell_all(connected, message, done_or_missed, within=SLEEP_PATIENCE, what=what)


CALL_SECONDS = 60.0
"""Seconds for a call that asks for none."""
CALL_GRACE = 30.0
"""Seconds beyond all bounds of a call after which no answer is waited for any longer: a worker that
doesn't return ends before, and its engine core says so."""


async def call_workers(
    sessions: Sequence[EngineSession],
    method: str,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    timeout: float | None = None,
) -> list[bytes]:
    """What each rank of each engine core answers, encoded; see AsyncLLM.collective_rpc."""
    seconds = CALL_SECONDS if timeout is None else timeout
    arguments = _arguments(method, args, kwargs, seconds)
    connected = all_able(sessions, lambda welcome: welcome.calls, "knows no such calls")
    most = min(each.welcome.call_bytes for each in connected if each.welcome is not None)
    if len(arguments) > most:
        raise InvalidRequest(
            f"{method}: its arguments have {len(arguments)} bytes; allowed: {most}", param="args"
        )
    asked = [_answers_of(session, method, arguments, seconds) for session in connected]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    results: list[bytes] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        results += answer
    return results


async def _answers_of(
    session: EngineSession, method: str, arguments: bytes, seconds: float
) -> list[bytes]:
    number, done = session.calls.begin()
    try:
        if not session.send(CallWorkers(number, method, arguments, seconds)):
            raise EngineUnavailable("there is no session with an engine core at the moment")
        return await asyncio.wait_for(done, 2 * seconds + CALL_GRACE)
    except TimeoutError:
        raise EngineUnavailable(f"the workers haven't answered {method!r}") from None
    finally:
        session.calls.forget(number)


def _arguments(
    method: str, args: Sequence[Any], kwargs: dict[str, Any] | None, seconds: float
) -> bytes:
    """Raises InvalidRequest."""
    if not isinstance(method, str) or not 0 < len(method) <= MAX_METHOD_CHARS:
        raise InvalidRequest(
            "method must be the name of a worker extension's method; code is never sent",
            param="method",
        )
    if not 0 < seconds <= MAX_CALL_SECONDS:
        raise InvalidRequest(
            f"timeout is {seconds:g}; allowed: more than 0, up to {MAX_CALL_SECONDS:g} s",
            param="timeout",
        )
    try:
        return encode_value([list(args), kwargs or {}])
    except TypeError as error:
        raise InvalidRequest(f"{method}: {error}", param="args") from None


async def hash_weights(
    sessions: Iterable[EngineSession], weights: str | None = None
) -> dict[str, str]:
    """The SHA-256, in hex, of each file of weights, by its name, as one engine core reads them.
    weights: digest of those that it must have (see Status); None: any, as all are the same.

    Raises InvalidRequest where it is of a version that doesn't read them, EngineUnavailable where
    there is none, and RequestFailed where a file can't be read."""
    able = all_able(sessions, lambda welcome: welcome.hashes_weights, "hashes no weights")
    having = (each for each in able if each.computing and each.computing.weights == weights)
    session = next(having, able[0])
    number, done = session.calls.begin()
    try:
        if not session.send(HashWeights(number)):
            raise EngineUnavailable("there is no session with an engine core at the moment")
        (answer,) = await done
        return {str(name): str(digest) for name, digest in decode_value(answer).items()}
    finally:
        session.calls.forget(number)
