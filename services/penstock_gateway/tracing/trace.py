"""What a traced request collects on its way. This module doesn't know OpenTelemetry.

The trace is kept in a context variable, like the caller, so that it reaches everything that submits
work for the request, and no endpoint has to pass it on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from penstock.client.timing import RequestTiming

if TYPE_CHECKING:
    from starlette.types import Scope

    from penstock.request.sampling_params import SamplingParams

TRACE = "penstock.trace"
"""Key of the Trace in the scope of a traced request."""

MAX_RUNS = 32
"""Runs of one request that have spans of their own: it has one for each prompt."""


class Run:
    """One prompt in the engine. Moments are on the clock of RequestTiming."""

    __slots__ = ("cached", "first_token", "n", "reasons", "release", "timing", "tokens")

    def __init__(self, n: int, timing: RequestTiming | None = None) -> None:
        self.n = n  # Sequences.
        self.timing = timing
        self.release: Callable[[], None] | None = None  # Ends what the engine client keeps for it.
        self.reasons: dict[int, str] = {}  # Why sequences ended, by index.
        self.tokens = 0  # Of all sequences.
        self.first_token: float | None = None  # When it came; None: none did.
        self.cached: int | None = None  # Tokens of the prompt that were found in the KV cache.


class Trace:
    """One HTTP request. Moments are on the clock of RequestTiming."""

    def __init__(self, span: Any, trace_id: str, begun: float, wall: int) -> None:
        self.span = span  # OpenTelemetry's.
        self.trace_id = trace_id
        self.begun = begun
        self.wall = wall  # Nanoseconds since 1970 at `begun`.
        self.ended = 0.0
        self.status: int | None = None  # Of the response; None: none was begun.
        self.error: BaseException | None = None  # What the request ended in.
        self.model = ""
        self.id = ""  # Of the reply.
        self.streamed = False
        self.params: SamplingParams | None = None  # None where no text is wanted.
        self.prompts = 0
        self.prompt_tokens = 0
        self.runs: list[Run] = []  # Of the first MAX_RUNS prompts.

    def asks(
        self, model: str, id: str, params: SamplingParams | None = None, *, streamed: bool = False
    ) -> None:
        """The request has been understood. id: of the reply.  params: None where no text is
        wanted."""
        self.model, self.id, self.params, self.streamed = model, id, params, streamed

    def run(self, prompt_tokens: int, n: int, timing: RequestTiming | None = None) -> Run | None:
        """A prompt has gone to the engine; None: there have been too many to follow each."""
        self.prompts += 1
        self.prompt_tokens += prompt_tokens
        if len(self.runs) >= MAX_RUNS:
            return None
        self.runs.append(Run(n, timing))
        return self.runs[-1]

    @property
    def follows(self) -> bool:
        """Whether the next prompt will have a Run."""
        return len(self.runs) < MAX_RUNS

    @property
    def timings(self) -> list[RequestTiming]:
        """Timings of its runs that have one and went to the engine."""
        return [run.timing for run in self.runs if run.timing is not None and run.timing.begun]

    def at(self, moment: float) -> int:
        """A moment in nanoseconds since 1970."""
        return self.wall + int((moment - self.begun) * 1e9)

    def end(self) -> None:
        """The request's answer has left, or nobody waits for it any more."""
        self.ended = time.perf_counter()

    def release(self) -> None:
        """Lets the engine client forget its generations: nothing more is waited for."""
        for run in self.runs:
            if run.release is not None:
                run.release()
                run.release = None


current: ContextVar[Trace | None] = ContextVar("trace", default=None)
"""The trace of the request that is being handled; None: it is not traced."""


def log_fields(scope: Scope) -> dict[str, str]:
    """What a log line of the request says about its trace."""
    trace: Trace | None = scope.get(TRACE)
    return {} if trace is None else {"trace_id": trace.trace_id}
