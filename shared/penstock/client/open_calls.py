"""Calls of worker extensions that a session has open."""

from __future__ import annotations

import asyncio

from penstock.errors import DeadlineExceeded, EngineUnavailable, InvalidRequest, RequestFailed
from penstock.protocol.to_frontend import Called


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
            answers = [self._answers[rank] for rank in sorted(self._answers)]
            wrong = next((each for each in answers if each.code), None)
            if wrong is None:
                self.done.set_result([each.result for each in answers])
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
        """Takes the answer of one rank."""
        opened = self._open.get(answer.call)
        if opened is not None and opened.take(answer):
            del self._open[answer.call]

    def forget(self, call: int) -> None:
        """Removes a call that isn't waited for any more."""
        self._open.pop(call, None)

    def lost(self, reason: str) -> None:
        """The session is over."""
        for opened in self._open.values():
            if not opened.done.done():
                error = f"the engine core is gone ({reason}); whether the workers were called isn't"
                opened.done.set_exception(EngineUnavailable(f"{error} known"))
        self._open.clear()


def _error(answer: Called) -> Exception:
    reason = f"rank {answer.rank}: {answer.error}" if answer.ranks > 1 else answer.error
    match answer.code:
        case "invalid":
            return InvalidRequest(reason, param="method")
        case "timed_out":
            return DeadlineExceeded(reason)
        case "unavailable":
            return EngineUnavailable(reason)
        case _:
            return RequestFailed(reason)
