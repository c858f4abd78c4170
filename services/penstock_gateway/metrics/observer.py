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
    """Has every request counted."""

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
        counts = self._counts
        counts.whole_request.observe(time.perf_counter() - request.begun)
        counts.request_generation_tokens.observe(request.generated_tokens)
        if request.cached_tokens is not None:
            counts.cache_queries += request.prompt_tokens
            counts.cache_hits += request.cached_tokens
