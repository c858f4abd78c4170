"""A session's turns follow one another: each comes a pause after the answer to the one before."""

from __future__ import annotations

from collections import deque

from penstock_engine.simulate.trace import TraceRequest


class SessionTurns:
    """Turns of sessions that wait for the turn before them. A session is known while one of its
    turns is open or to come."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[str, deque[TraceRequest]] = {}

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def waits(self, request: TraceRequest) -> bool:
        """Takes a request of the trace. Whether it waits for its turn; else it comes at once."""
        if not request.session:
            return False
        line = self._waiting.get(request.session)
        if line is None:
            self._waiting[request.session] = deque()
            return False
        line.append(request)
        return True

    def ended(self, session: str) -> TraceRequest | None:
        """A turn is over: the next one, which comes after its pause; None: there is none."""
        line = self._waiting[session]
        if line:
            return line.popleft()
        del self._waiting[session]
        return None
