"""Has workers call methods of their extensions, and waits for what they answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.call_values import encode_value
from penstock.errors import DeadlineExceeded, EngineUnavailable, InvalidRequest, RequestFailed
from penstock.protocol.common import MAX_CALL_BYTES, MAX_CALL_SECONDS, MAX_METHOD_CHARS
from penstock.protocol.from_frontend import CallWorkers
from penstock.protocol.to_frontend import Called

if TYPE_CHECKING:
    from penstock.client.session import EngineSession

DEFAULT_SECONDS = 60.0
"""Of a call that says nothing about it."""
GRACE = 30.0
"""Seconds beyond all bounds of a call after which no answer is waited for any longer: a worker that
doesn't return ends before, and its engine core says so."""


class _OpenCall:
    def __init__(self) -> None:
        self.done: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        self._answers: dict[int, Called] = {}

    def take(self, answer: Called) -> bool:
        """Whether all ranks have answered."""
        self._answers[answer.rank] = answer
        if len(self._answers) < answer.ranks:
            return False
        if not self.done.done():
            told = [self._answers[rank] for rank in sorted(self._answers)]
            wrong = next((each for each in told if each.code), None)
            if wrong is None:
                self.done.set_result([each.result for each in told])
            else:
                self.done.set_exception(_error(wrong))
        return True


class OpenCalls:
    """Calls that a session has open, by their numbers."""

    def __init__(self) -> None:
        self._open: dict[int, _OpenCall] = {}
        self._last = 0

    def begin(self) -> tuple[int, asyncio.Future[list[bytes]]]:
        """A new one's number, and what its ranks will have answered."""
        self._last += 1
        opened = self._open[self._last] = _OpenCall()
        return self._last, opened.done

    def take(self, answer: Called) -> None:
        """Of one rank."""
        opened = self._open.get(answer.call)
        if opened is not None and opened.take(answer):
            del self._open[answer.call]

    def forget(self, call: int) -> None:
        """Nobody waits for it."""
        self._open.pop(call, None)

    def lost(self, reason: str) -> None:
        """The session is over."""
        for opened in self._open.values():
            if not opened.done.done():
                error = f"the engine core is gone ({reason}); whether the workers were called isn't"
                opened.done.set_exception(EngineUnavailable(f"{error} known"))
        self._open.clear()


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
    connected = [session for session in sessions if session.connected]
    if not connected:
        raise EngineUnavailable("there is no session with an engine core at the moment")
    for session in connected:
        if session.welcome is None or not session.welcome.calls:
            raise InvalidRequest(f"the engine core at {session.endpoint} knows no such calls")
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
        arguments = encode_value([list(args), kwargs or {}])
    except TypeError as error:
        raise InvalidRequest(f"{method}: {error}", param="args") from None
    if len(arguments) > MAX_CALL_BYTES:
        raise InvalidRequest(
            f"{method}: its arguments have {len(arguments)} bytes; allowed: {MAX_CALL_BYTES}",
            param="args",
        )
    return arguments


def _error(answer: Called) -> Exception:
    told = f"rank {answer.rank}: {answer.error}" if answer.ranks > 1 else answer.error
    match answer.code:
        case "invalid":
            return InvalidRequest(told, param="method")
        case "timed_out":
            return DeadlineExceeded(told)
        case "unavailable":
            return EngineUnavailable(told)
        case _:
            return RequestFailed(told)
