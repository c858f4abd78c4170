"""Tells a request's trace what became of its prompts in the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.client.observer import RequestObserver
from penstock_gateway.tracing.trace import Run, Trace, current

if TYPE_CHECKING:
    from penstock.client.observer import ObservedRequest


class TraceObserver:
    """Hears of the requests that are traced."""

    def request(self, prompt_tokens: int) -> RequestObserver | None:
        trace = current.get()
        return None if trace is None else _RunObserver(trace)


class _RunObserver(RequestObserver):
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._run: Run | None = None

    @property
    def timed(self) -> bool:
        return self._trace.follows

    def submitted(self, request: ObservedRequest) -> None:
        self._run = self._trace.run(request.prompt_tokens, request.sequences, request.timing)

    def first_token(self, request: ObservedRequest) -> None:
        if self._run is not None:
            self._run.first_token = request.first_token

    def ended(self, request: ObservedRequest) -> None:
        run = self._run
        if run is None:
            return
        run.tokens, run.cached = request.generated_tokens, request.cached_tokens
        run.reasons |= request.reasons
        for index in range(run.n):
            run.reasons.setdefault(index, request.last_reason or "")

    def keep(self, release: Callable[[], None]) -> bool:
        if self._run is None:
            return False
        self._run.release = release
        return True
