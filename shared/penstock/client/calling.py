"""Has workers call methods of their extensions, and waits for what they answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from penstock.client.session import EngineSession
from penstock.client.telling import all_able
from penstock.errors import EngineUnavailable, InvalidRequest
from penstock.protocol.call_values import encode_value
from penstock.protocol.common import MAX_CALL_SECONDS, MAX_METHOD_CHARS
from penstock.protocol.from_frontend import CallWorkers

DEFAULT_SECONDS = 60.0
"""Seconds for a call that asks for none."""
GRACE = 30.0
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
    seconds = DEFAULT_SECONDS if timeout is None else timeout
    arguments = _arguments(method, args, kwargs, seconds)
    connected = all_able(sessions, lambda welcome: welcome.calls, "knows no such calls")
    most = min(each.welcome.call_bytes for each in connected if each.welcome is not None)
    if len(arguments) > most:
        raise InvalidRequest(
            f"{method}: its arguments have {len(arguments)} bytes; allowed: {most}", param="args"
        )
    asked = [_asked(session, method, arguments, seconds) for session in connected]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    results: list[bytes] = []
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
        results += answer
    return results


async def _asked(
    session: EngineSession, method: str, arguments: bytes, seconds: float
) -> list[bytes]:
    number, done = session.calls.begin()
    try:
        if not session.send(CallWorkers(number, method, arguments, seconds)):
            raise EngineUnavailable("there is no session with an engine core at the moment")
        return await asyncio.wait_for(done, 2 * seconds + GRACE)
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
