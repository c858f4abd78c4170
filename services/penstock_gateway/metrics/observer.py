"""Counts what goes through the engine client."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.client.observer import RequestObserver

if TYPE_CHECKING:
    from penstock.client.observer import ObservedRequest
    from penstock.protocol.common import FinishReason
    from penstock_gateway.metrics.counts import GatewayCounts


class CountingObserver:
    """Counts every request."""

    def __init__(self, counts: GatewayCounts) -> None:
        self._counts = counts

    def request(self, prompt_tokens: int) -> RequestObserver:
        return _RequestCounter(self._counts)


class _RequestCounter(RequestObserver):
    def __init__(self, counts: GatewayCounts) -> None:
        self._counts = counts

    def submitted(self, request: ObservedRequest) -> None:
        self._counts.prompt_tokens += request.prompt_tokens
        self._counts.request_prompt_tokens.observe(request.prompt_tokens)
        if request.max_tokens is not None:
            self._counts.max_tokens.observe(request.max_tokens)
            self._counts.choices.observe(request.sequences)

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
