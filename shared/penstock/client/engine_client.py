"""A front end's requests, and the engine cores that it has for them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from typing import Any, Literal

from penstock.client.beam_request import BeamRequest, Follow
from penstock.client.client_view import ClientView
from penstock.client.control import (
    all_paused,
    any_sleeping,
    call_workers,
    put_to_sleep,
    set_paused,
    wake_up,
)
from penstock.client.delivery import Delivery
from penstock.client.dispatch import Dispatch
from penstock.client.emitted import KnownTokens
from penstock.client.fleet import Resolver, parse_endpoints, resolve
from penstock.client.generation import Generation
from penstock.client.generation_request import GenerationRequest, stopping, token_sampling
from penstock.client.media import PreparedMedia
from penstock.client.observer import Observer, observe
from penstock.client.placement import placement_of
from penstock.client.pool_request import PoolRequest, PoolResult, check_input, check_task
from penstock.client.ready_params import ReadyParams, ready_of_each, ready_params
from penstock.client.replacing import ChangeMode, replace_weights
from penstock.client.request_bounds import check_generates, check_prompt
from penstock.client.routing_policies import make_routing
from penstock.client.served_model import ModelText
from penstock.client.thinking import asked_budget
from penstock.client.timing import RequestTiming
from penstock.config.settings import TransportSettings
from penstock.errors import EngineUnavailable
from penstock.media.item_names import PromptMedia
from penstock.protocol.common import NamedAdapter, Pooling, SpeechRules, TokenSampling, WakeTag
from penstock.protocol.from_frontend import OpenSequence
from penstock.protocol.to_frontend import Welcome
from penstock.request.sampling_params import SamplingParams
from penstock.request.terms import Terms

NO_TERMS = Terms()

NEW_PATIENCE = 2.0
"""Seconds after the last session's end in which a new request waits for the next one: what is
killed is back in less, and a process that had no time to read is at once.  An engine core that left
in order is not waited for."""

RESUME_PATIENCE = 60.0
"""Seconds that open requests wait for an engine core to come back."""

_TICK = 0.1
"""Seconds between looks at those that wait for an engine core."""


class EngineClient(ClientView):
    """Submits requests to engine cores and hands their outputs to Generations.

    Lives in one event loop; no method may be called from another thread.  When a session ends, its
    open requests are submitted again with what they have emitted, to another engine core where
    there is one, else to the next that comes; so their consumers see a pause.  They fail when none
    comes within RESUME_PATIENCE seconds, or one with another model.

    endpoint: a list, see `parse_endpoints`; raises InvalidRequest.  routing: one of
    `routing.POLICIES`.  reasoning_parser: names how the model marks its thoughts; auto: its chat
    template says it.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        name: str,
        settings: TransportSettings | None = None,
        routing: str = "prefix",
        reasoning_parser: str = "auto",
        resolver: Resolver = resolve,
    ) -> None:
        self._endpoint = endpoint
        self._reasoning_parser = reasoning_parser
        self._dispatch = Dispatch(
            parse_endpoints(endpoint),
            name,
            settings or TransportSettings(),
            make_routing(routing),
            resolver,
        )
        self._fleet = self._dispatch.fleet
        self._observer: Observer | None = None
        self._closed = False
        self._resets = 0
        self._ticker: asyncio.Task[None] | None = None

    def observe(self, observer: Observer) -> None:
        """Tells the observer of all requests from now on. There is one; see Observers for more."""
        self._observer = observer

    def reset_prefix_cache(self) -> None:
        """Requests from now on use no KV blocks of earlier ones, whose blocks go as others need
        the room."""
        self._resets += 1

    def name_adapters(self, adapters: list[NamedAdapter]) -> None:
        """Has all engine cores, and so all front ends, know adapters by these names."""
        self._dispatch.name_adapters(adapters)

    async def set_paused(self, paused: bool, *, abort: bool = False) -> None:
        """Has all engine cores stop computing, or go on, see `pausing.set_paused`. One that starts
        anew isn't paused."""
        await set_paused(self._fleet.sessions, paused=paused, abort=abort)

    @property
    def paused(self) -> bool:
        """Whether all engine cores are."""
        return all_paused(self._fleet.sessions)

    async def put_to_sleep(self, level: Literal[1, 2] = 1, *, abort: bool = False) -> None:
        """Has all engine cores give their models' memory back, see `sleeping.put_to_sleep`."""
        await put_to_sleep(self._fleet.sessions, level, abort=abort)

    async def wake_up(self, tags: Sequence[WakeTag] = ()) -> bool:
        """Has all engine cores load their models again, see `sleeping.wake_up`."""
        return await wake_up(self._fleet.sessions, tags)

    @property
    def sleeping(self) -> bool:
        """Whether the model of an engine core sleeps, or is about to."""
        return any_sleeping(self._fleet.sessions)

    async def call_workers(
        self,
        method: str,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> list[bytes]:
        """What each rank of each engine core answers, see `calling.call_workers`."""
        return await call_workers(self._fleet.sessions, method, args, kwargs, timeout)

    async def replace_weights(
        self,
        source: str | os.PathLike[str],
        *,
        mode: ChangeMode = "wait",
        timeout: float | None = None,
        cache_dir: str | None = None,
    ) -> None:
        """Has every engine core load other weights, see `replacing.replace_weights`."""
        await replace_weights(
            self._fleet.sessions, source, mode=mode, timeout=timeout, cache_dir=cache_dir
        )

    @property
    def takes_requests(self) -> bool:
        """Whether there is a session, or was one so lately that new requests wait for the next."""
        return self.connected or self._dispatch.away(time.monotonic()) < NEW_PATIENCE

    async def start(self) -> None:
        """Begins to dial. Returns at once; see wait_connected."""
        if self._ticker is None:
            self._ticker = asyncio.create_task(self._tick())
            self._fleet.start()

    async def close(self) -> None:
        """Aborts open requests and leaves."""
        self._abort_all()
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        await self._fleet.stop()
        self.close_now()

    def close_now(self) -> None:
        """Closes for who can't wait, also after the loop's end: the engine learns of it when the
        session ends. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if asyncio._get_running_loop() is not None:
            self._abort_all()
            if self._ticker is not None:
                self._ticker.cancel()
        self._dispatch.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called, which aborts all requests."""
        return self._closed

    def _abort_all(self) -> None:
        for request in self._dispatch.requests():
            request.abort()

    async def wait_connected(self, timeout: float) -> None:
        """Raises EngineUnavailable when there is no session after `timeout` seconds."""
        try:
            await asyncio.wait_for(self._dispatch.connected.wait(), timeout)
        except TimeoutError:
            reason = f": {self.last_reason}" if self.last_reason else ""
            raise EngineUnavailable(
                f"no engine core answered at {self._endpoint} in {timeout:g} s{reason}"
            ) from None

    async def submit(
        self,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        name: str,
        terms: Terms = NO_TERMS,
        timed: bool = False,
        media: PromptMedia | None = None,
        speech: SpeechRules | None = None,
        prediction: Sequence[int] = (),
        claimed: bool = False,
        sequences: tuple[OpenSequence, ...] = (),
        read_at_end: bool = False,
        known: Sequence[KnownTokens] = (),
        ready: ReadyParams | None = None,
    ) -> Generation:
        """Returns once an engine has accepted the request, and compiled its grammar if it has one;
        with media, once they were loaded.

        media: what the prompt's placeholders stand for; references to its bytes are held until the
        request ends.  speech: what its tokens may be where it transcribes.  prediction, claimed:
        see Submit.  sequences: of its n, those that run, each after what it has emitted; empty: all
        from their beginning.  read_at_end: nobody reads tokens before the end, so they may come
        together.  known: what the consumer has of each.  ready: what `ready_params` has made of the
        params, which then need nothing of what it read; None: it is made here.

        Raises InvalidRequest, Overloaded (with retry_after; Limited is one), DeadlineExceeded or
        EngineUnavailable, and what the observer refuses with.  When the caller is cancelled while
        it waits, the request is aborted.
        """
        observed = await observe(self._observer, len(prompt_token_ids), params.n, terms.adapter)
        terms = terms.after_resets(self._resets)
        welcome, text = await self._ready(terms)
        check_generates(welcome)
        check_prompt(prompt_token_ids, welcome)
        if ready is None:
            ready = ready_params(params, text.tokenizer, welcome.limits)
        budget, thinking = params.thinking_token_budget, None
        if budget is not None:
            thinking = asked_budget(budget, self._reasoning_parser, welcome, text, prompt_token_ids)
        request = GenerationRequest(
            name=name,
            prompt_token_ids=prompt_token_ids,
            params=params,
            sampling=token_sampling(params, ready, welcome.seed, speech, thinking),
            stopping=stopping(params, len(prompt_token_ids), welcome.limits),
            terms=terms,
            ready=ready,
            media=None if media is None else PreparedMedia(media),
            prediction=prediction,
            claimed=claimed,
            sequences=sequences,
        )
        delivery = Delivery(
            tokenizer=text.tokenizer,
            turns=self._dispatch.turns,
            observed=observed,
            timed=timed or observed.timed,
            read_at_end=read_at_end,
            known=known,
        )
        generation = Generation(request, delivery, placement_of(prompt_token_ids, terms, media))
        self._dispatch.place_ahead(generation)
        try:
            await generation.accepted
            await generation.prepared
        except asyncio.CancelledError:
            generation.abort()
            raise
        observed.accepted(generation.timing, generation.max_tokens)
        return generation

    async def ready_of_each(
        self, params: Sequence[SamplingParams], terms: Terms = NO_TERMS
    ) -> list[ReadyParams]:
        """What `submit` takes as `ready` with each of these. Raises as it does."""
        welcome, text = await self._ready(terms)
        check_generates(welcome)
        return ready_of_each(params, text.tokenizer, welcome.limits)

    async def search(
        self,
        prompt_token_ids: list[int],
        follow: Follow,
        *,
        beams: int,
        candidates: int,
        name: str,
        terms: Terms = NO_TERMS,
    ) -> BeamRequest:
        """A beam search on its way: its first step is that of a single beam, the prompt's.

        beams: that a step may have.  candidates: most likely tokens that each step reports.
        Raises as `submit` does; what an engine core's refusal means comes with `done`.
        """
        observed = await observe(self._observer, len(prompt_token_ids), beams, terms.adapter)
        terms = terms.after_resets(self._resets)
        welcome, _ = await self._ready(terms)
        check_generates(welcome)
        check_prompt(prompt_token_ids, welcome)
        timing = RequestTiming(1) if observed.timed else None
        request = BeamRequest(
            name=name,
            prompt_token_ids=prompt_token_ids,
            beams=beams,
            sampling=TokenSampling(0, temperature=0.0, logprobs=candidates),
            terms=terms,
            placement=placement_of(prompt_token_ids, terms),
            follow=follow,
            timing=timing,
            observed=observed,
        )
        observed.accepted(timing)
        self._dispatch.place_new(request)
        return request

    async def pool(
        self,
        prompt_token_ids: list[int],
        pooling: Pooling,
        *,
        name: str,
        terms: Terms = NO_TERMS,
        media: PromptMedia | None = None,
    ) -> PoolResult:
        """What a pooling model makes of the input, or an alignment. Raises as `submit` does, and
        RequestFailed.

        When the caller is cancelled while it waits, the request is aborted.
        """
        observed = await observe(self._observer, len(prompt_token_ids), 1)
        timing = RequestTiming(1) if observed.timed else None
        observed.accepted(timing)
        terms = terms.after_resets(self._resets)
        welcome, _ = await self._ready(terms)
        check_task(pooling.task, welcome)
        check_input(prompt_token_ids, welcome)
        request = PoolRequest(
            name=name,
            prompt_token_ids=prompt_token_ids,
            pooling=pooling,
            terms=terms,
            placement=placement_of(prompt_token_ids, terms, media),
            media=None if media is None else PreparedMedia(media),
            timing=timing,
        )
        self._dispatch.place_new(request)
        try:
            return await asyncio.shield(request.result)
        finally:
            request.abort()

    async def _ready(self, terms: Terms) -> tuple[Welcome, ModelText]:
        """What requests are made for. Raises EngineUnavailable or DeadlineExceeded."""
        terms.check_time()
        await self._wait_briefly()
        welcome, text = self.welcome, self.text
        if not self.connected or welcome is None or text is None:
            raise EngineUnavailable("there is no session with an engine core at the moment")
        return welcome, text

    async def _wait_briefly(self) -> None:
        """Waits for another session if the last one has just ended, for NEW_PATIENCE seconds at
        most."""
        left = NEW_PATIENCE - self._dispatch.away(time.monotonic())
        if self.connected or left <= 0:
            return
        try:
            await asyncio.wait_for(self._dispatch.connected.wait(), left)
        except TimeoutError:
            pass  # Who called us says what that means.

    async def _tick(self) -> None:
        while True:
            self._dispatch.look(time.monotonic(), RESUME_PATIENCE)
            await asyncio.sleep(_TICK)
