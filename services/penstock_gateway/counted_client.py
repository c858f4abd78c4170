"""The engine client as endpoints see it: it counts what goes through, and charges keys."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from penstock.client.timing import RequestTiming
from penstock_gateway.keys.caller import Caller, current
from penstock_gateway.metrics.counts import GatewayCounts
from penstock_gateway.tracing import trace as tracing

if TYPE_CHECKING:
    from penstock.client import EngineClient, Generation, SequenceDelta
    from penstock.client.beam_request import BeamRequest, Follow
    from penstock.client.engine_state import EngineState
    from penstock.client.generation import Sink
    from penstock.client.live import LiveFeed
    from penstock.client.pool_request import PoolResult
    from penstock.protocol.common import FinishReason, Pooling
    from penstock.sampling_params import SamplingParams
    from penstock.terms import Terms
    from penstock_gateway.keys.rate_limits import RateLimits


class CountedClient:
    """Has what endpoints use of EngineClient. A new way to submit needs its own method here: none
    is passed on unseen."""

    def __init__(
        self, client: EngineClient, counts: GatewayCounts, limits: RateLimits | None
    ) -> None:
        self._client = client
        self._counts = counts
        self._limits = limits

    @property
    def connected(self) -> bool:
        return self._client.connected

    @property
    def takes_requests(self) -> bool:
        return self._client.takes_requests

    @property
    def welcome(self) -> Any:
        return self._client.welcome

    @property
    def text(self) -> Any:
        return self._client.text

    @property
    def status(self) -> Any:
        return self._client.status

    @property
    def engines(self) -> list[EngineState]:
        return self._client.engines

    @property
    def routed(self) -> Counter[tuple[int, str]]:
        return self._client.routed

    @property
    def moved(self) -> int:
        return self._client.moved

    @property
    def renumbered(self) -> int:
        return self._client.renumbered

    @property
    def live(self) -> LiveFeed:
        return self._client.live

    def status_age(self, now: float) -> float:
        return self._client.status_age(now)

    async def submit(
        self, prompt: list[int], params: SamplingParams, *, name: str, terms: Terms, **more: Any
    ) -> CountedGeneration:
        """As EngineClient's. Raises also HTTPError 429."""
        caller = current.get()
        if self._limits is not None:
            await self._limits.prompt(caller, len(prompt))
        trace = tracing.current.get()
        if trace is not None and trace.follows:
            more["timed"] = True
        begun = time.perf_counter()
        generation = await self._client.submit(prompt, params, name=name, terms=terms, **more)
        run = None if trace is None else trace.run(len(prompt), params.n, generation.timing)
        counts = self._counts
        counts.prompt_tokens += len(prompt)
        counts.request_prompt_tokens.observe(len(prompt))
        return CountedGeneration(
            generation, begun, len(prompt), params.n, counts, self._limits, caller, run
        )

    async def search(
        self,
        prompt: list[int],
        follow: Follow,
        *,
        beams: int,
        candidates: int,
        name: str,
        terms: Terms,
    ) -> BeamRequest:
        """As EngineClient's: one request, whose tokens are those of all beams. Raises also
        HTTPError 429."""
        caller = current.get()
        if self._limits is not None:
            await self._limits.prompt(caller, len(prompt))
        trace = tracing.current.get()
        begun = time.perf_counter()
        request = await self._client.search(
            prompt,
            follow,
            beams=beams,
            candidates=candidates,
            name=name,
            terms=terms,
            timed=trace is not None and trace.follows,
        )
        run = None if trace is None else trace.run(len(prompt), beams, request.timing)
        self._counts.prompt_tokens += len(prompt)
        self._counts.request_prompt_tokens.observe(len(prompt))

        def over(done: asyncio.Future[FinishReason]) -> None:
            self._count_search(request, reason_of(done), begun, len(prompt), caller, run)

        request.done.add_done_callback(over)
        return request

    def _count_search(
        self,
        request: BeamRequest,
        reason: FinishReason,
        begun: float,
        prompt_tokens: int,
        caller: Caller,
        run: tracing.Run | None,
    ) -> None:
        counts, first, cached = self._counts, request.first_token, request.cached_tokens
        counts.finished[reason] += 1
        counts.generation_tokens += request.generated
        counts.whole_request.observe(time.perf_counter() - begun)
        counts.request_generation_tokens.observe(request.generated)
        if first is not None:
            counts.first_token.observe(first - begun)
        if cached is not None:
            counts.cache_queries += prompt_tokens
            counts.cache_hits += cached
        if run is not None:
            run.first_token = first
            run.ended(request.generated, cached, reason)
        if self._limits is not None:
            self._limits.output(caller, request.generated)

    async def pool(
        self, prompt: list[int], pooling: Pooling, *, name: str, terms: Terms
    ) -> PoolResult:
        """As EngineClient's. Raises also HTTPError 429."""
        if self._limits is not None:
            await self._limits.prompt(current.get(), len(prompt))
        self._counts.prompt_tokens += len(prompt)
        self._counts.request_prompt_tokens.observe(len(prompt))
        trace = tracing.current.get()
        if trace is None:
            return await self._client.pool(prompt, pooling, name=name, terms=terms)
        timing = RequestTiming(1)
        trace.run(len(prompt), 1, timing)
        return await self._client.pool(prompt, pooling, name=name, terms=terms, timing=timing)


def reason_of(done: asyncio.Future[FinishReason]) -> FinishReason:
    """Why a search is over."""
    if done.cancelled():
        return "abort"
    return done.result() if done.exception() is None else "error"


class CountedGeneration:
    """As Generation, of which it also has every other attribute."""

    def __init__(
        self,
        generation: Generation,
        begun: float,
        prompt_tokens: int,
        n: int,
        counts: GatewayCounts,
        limits: RateLimits | None,
        caller: Caller,
        run: tracing.Run | None = None,
    ) -> None:
        self._generation = generation
        self._begun = begun
        self._prompt_tokens = prompt_tokens
        self._counts = counts
        self._limits = limits
        self._caller = caller
        self._open = n
        self._tokens = 0
        self._run = run
        self._last: dict[int, float] = {}
        """When each choice last gained a token."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generation, name)

    def abort(self) -> None:
        """As Generation's."""
        if self._run is None:
            self._generation.abort()
        else:
            self._run.generation = self._generation
            self._generation.abort(linger=True)
        if self._open:
            self._counts.finished["abort"] += self._open
            self._end("abort")

    def __aiter__(self) -> AsyncIterator[list[SequenceDelta]]:
        return self

    async def __anext__(self) -> list[SequenceDelta]:
        try:
            deltas = await self._generation.__anext__()
        except StopAsyncIteration:
            raise
        except Exception:
            if self._open:
                self._counts.finished["error"] += self._open
                self._end("error")
            raise
        self._count(deltas)
        return deltas

    def feed(self, sink: Sink) -> None:
        """As Generation's."""

        def counting(deltas: list[SequenceDelta]) -> bool:
            if not sink(deltas):
                return False
            self._count(deltas)
            return True

        self._generation.feed(counting)

    def _count(self, deltas: list[SequenceDelta]) -> None:
        """What the client gets now."""
        now = time.perf_counter()
        last, counts = self._last, self._counts
        for delta in deltas:
            gained = len(delta.token_ids)
            if gained:
                before = last.get(delta.index)
                if before is not None:
                    counts.between_tokens.observe((now - before) / gained)
                elif not last:
                    counts.first_token.observe(now - self._begun)
                    if self._run is not None:
                        self._run.first_token = now
                last[delta.index] = now
                self._tokens += gained
                counts.generation_tokens += gained
            if delta.finish_reason is not None:
                counts.finished[delta.finish_reason] += 1
                if self._run is not None:
                    self._run.reasons[delta.index] = delta.finish_reason
                self._open -= 1
                if not self._open:
                    self._end()

    def _end(self, otherwise: str = "") -> None:
        """Once. otherwise: why those ended that did not say so."""
        self._open = 0
        counts = self._counts
        counts.whole_request.observe(time.perf_counter() - self._begun)
        counts.request_generation_tokens.observe(self._tokens)
        cached = self._generation.cached_tokens
        if self._run is not None:
            self._run.ended(self._tokens, cached, otherwise)
        if cached is not None:
            counts.cache_queries += self._prompt_tokens
            counts.cache_hits += cached
        if self._limits is not None:
            self._limits.output(self._caller, self._tokens)
