"""Everything that this gateway counts about the requests that it submits to the engine core."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.client.observer import RequestObserver
from penstock.metrics.histogram import Histogram

if TYPE_CHECKING:
    from penstock.client.observer import ObservedRequest
    from penstock.protocol.common import FinishReason

# vLLM's bounds, so that dashboards made for it show the same detail.
FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
BETWEEN_TOKENS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
WHOLE_REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)
TOKENS = tuple(float(step * 10**power) for power in range(6) for step in (1, 2, 5))

FINISH_REASONS = ("stop", "length", "repetition", "abort", "timeout", "error")


class GatewayCounts:
    """Since the process began. Times in seconds, as this gateway sees them."""

    def __init__(self) -> None:
        self.with_adapters: set[ObservedRequest] = set()
        """Open generations to which an adapter is applied."""
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.cache_queries = 0
        self.cache_hits = 0
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.first_token = Histogram(FIRST_TOKEN)
        self.between_tokens = Histogram(BETWEEN_TOKENS)
        self.whole_request = Histogram(WHOLE_REQUEST)
        self.request_prompt_tokens = Histogram(TOKENS)
        self.request_generation_tokens = Histogram(TOKENS)
        self.longest_sequence = Histogram(TOKENS)
        self.max_tokens = Histogram(TOKENS)
        self.choices = Histogram(CHOICES)
        self.queue = Histogram(WHOLE_REQUEST)
        self.prefill = Histogram(WHOLE_REQUEST)
        self.decode = Histogram(WHOLE_REQUEST)
        self.inference = Histogram(WHOLE_REQUEST)


class CountingObserver:
    """Counts every request."""

    def __init__(self, counts: GatewayCounts) -> None:
        self._counts = counts

    def request(self, prompt_tokens: int) -> RequestObserver:
        return _RequestCounter(self._counts)


class _RequestCounter(RequestObserver):
    __slots__ = ("_counts",)

    def __init__(self, counts: GatewayCounts) -> None:
        self._counts = counts

    def submitted(self, request: ObservedRequest) -> None:
        self._counts.prompt_tokens += request.prompt_tokens
        self._counts.request_prompt_tokens.observe(request.prompt_tokens)
        if request.max_tokens is not None:
            self._counts.max_tokens.observe(request.max_tokens)
            self._counts.choices.observe(request.sequences)
            if request.adapter:
                self._counts.with_adapters.add(request)

    def first_token(self, request: ObservedRequest) -> None:
        if request.first_token is not None:
            self._counts.first_token.observe(request.first_token - request.begun)

    def delta(self, tokens: int, elapsed: float | None) -> None:
        self._counts.generation_tokens += tokens
        if elapsed is not None:
            self._counts.between_tokens.observe(elapsed / tokens)

    def finished(self, reason: FinishReason, sequences: int) -> None:
        self._counts.finished[reason] += sequences

    def ended(self, request: ObservedRequest) -> None:
        counts, now = self._counts, time.perf_counter()
        counts.with_adapters.discard(request)
        counts.whole_request.observe(now - request.begun)
        self._phases(request, now)
        counts.request_generation_tokens.observe(request.generated_tokens)
        if request.tokens_by_sequence:
            counts.longest_sequence.observe(max(request.tokens_by_sequence.values()))
        if request.cached_tokens is not None:
            counts.cache_queries += request.prompt_tokens
            counts.cache_hits += request.cached_tokens

    def _phases(self, request: ObservedRequest, now: float) -> None:
        """Queue and prefill together are the time to the first token; a request without one waited,
        or was prefilled, until it ended."""
        counts, entered = self._counts, request.entered_at
        first, last = request.first_token, request.last_token
        if entered is not None:
            counts.queue.observe(entered - request.begun)
            counts.prefill.observe((now if first is None else first) - entered)
            counts.inference.observe((now if last is None else last) - entered)
        elif first is None:
            counts.queue.observe(now - request.begun)
        if first is not None and last is not None:
            counts.decode.observe(last - first)
