"""What is recorded of each request while it runs, and the kinds of error."""

from __future__ import annotations

import enum
from array import array
from dataclasses import dataclass, field


class ErrorKind(enum.StrEnum):
    """Why a request gave no whole answer. Each is counted; none is silent."""

    CONNECT = "connect_failed"
    HTTP = "http"  # counted with its status: http_429
    STREAM_ERROR = "error_in_stream"
    TRUNCATED = "truncated"
    MALFORMED = "malformed"
    EMPTY = "no_token"
    WRONG_LENGTH = "wrong_length"
    TIMEOUT_FIRST = "timeout_before_first_token"
    TIMEOUT_STREAM = "timeout_in_stream"
    CUT_OFF = "cut_off_by_time_limit"
    NOT_SENT = "not_sent_too_many_in_flight"


# The run's own bounds ended these; their age is a lower bound of their latency.
CENSORED = frozenset({ErrorKind.TIMEOUT_FIRST, ErrorKind.TIMEOUT_STREAM, ErrorKind.CUT_OFF})


@dataclass(slots=True)
class RequestRecord:
    """One request. Times are seconds on the run's clock (time.perf_counter).

    intended: when the workload wanted it sent; every latency counts from here, so that a generator
        that lags shows in the figures (coordinated omission).
    sent: when it was sent; None if never.
    arrivals: one time for each chunk that brought tokens.
    totals: tokens received by then, as the server counted; empty where it didn't say per chunk.
    prompt_tokens, completion_tokens: the server's usage; None where it gave none.
    """

    index: int
    output_tokens_asked: int
    intended: float
    sent: float | None = None
    ended: float | None = None
    arrivals: array[float] = field(default_factory=lambda: array("d"))
    totals: array[int] = field(default_factory=lambda: array("q"))
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    error_detail: str = ""

    @property
    def ok(self) -> bool:
        return self.error is None and self.ended is not None

    @property
    def tokens(self) -> int:
        """Output tokens received: by usage, else one for each chunk."""
        if self.completion_tokens is not None:
            return self.completion_tokens
        return self.totals[-1] if self.totals else len(self.arrivals)

    def fail(self, kind: str, detail: str = "") -> None:
        """Marks the first thing that went wrong; later ones follow from it."""
        if self.error is None:
            self.error = str(kind)
            self.error_detail = detail[:500]
