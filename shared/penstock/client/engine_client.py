"""The asyncio session of a front end with its engine core."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import msgspec
import zmq

from penstock import logs
from penstock.client.generation import Generation
from penstock.client.live import LiveFeed
from penstock.client.model_text import ModelText
from penstock.client.pool_request import (
    PoolRequest,
    PoolResult,
    check_generates,
    check_input,
    check_task,
)
from penstock.client.sampling import stopping, token_sampling
from penstock.config import TransportSettings
from penstock.errors import (
    EngineUnavailable,
    InvalidRequest,
    Limited,
    Overloaded,
    PenstockError,
    RequestFailed,
)
from penstock.protocol import PROTOCOL_VERSIONS
from penstock.protocol.common import Pooling
from penstock.protocol.from_frontend import FromFrontend, Hello
from penstock.protocol.live import Snapshot
from penstock.protocol.to_frontend import (
    Accepted,
    Outputs,
    Pooled,
    Prepared,
    Rejected,
    Status,
    ToFrontend,
    Welcome,
)
from penstock.sampling_params import SamplingParams
from penstock.terms import Terms
from penstock.transport.events import Ended, Event, Opened
from penstock.transport.link import Link

log = logs.get(__name__)

NO_TERMS = Terms()

RESUME_PATIENCE = 60.0
"""Seconds that open requests wait for an engine core to come back."""


class EngineClient:
    """Submits requests to an engine core and hands their outputs to Generations.

    Lives in one event loop; no method may be called from another thread.  When the session ends,
    open requests are submitted again in the next one with what they have emitted, so their
    consumers see a pause.  They fail when no engine comes within RESUME_PATIENCE seconds, or one
    with another model.
    """

    def __init__(
        self, endpoint: str, *, name: str, settings: TransportSettings | None = None
    ) -> None:
        self._endpoint = endpoint
        self._name = name
        self._settings = settings or TransportSettings()
        self._context: zmq.Context[Any] = zmq.Context()
        self._link: Link[ToFrontend] = Link(
            self._context,
            endpoint,
            msgspec.msgpack.Decoder(ToFrontend),
            lambda: Hello(list(PROTOCOL_VERSIONS), name, os.getpid()),
            self._settings,
        )
        self._open: dict[int, Generation | PoolRequest] = {}
        self._due: list[Generation] = []
        """Those with a sink that this turn has given something."""
        self._next_key = 1
        self._watched: int | None = None
        self._pump_due = False
        self._closed = False
        self._ticker: asyncio.Task[None] | None = None
        self._connected_event = asyncio.Event()
        self._lost_at: float | None = None
        self._status_at = 0.0
        self._last_boot: str | None = None
        self._left_in_order = False
        self.welcome: Welcome | None = None
        self.text: ModelText | None = None
        self.status: Status | None = None
        self.live = LiveFeed()

    @property
    def connected(self) -> bool:
        """Whether there is a session with an engine core."""
        return self._connected_event.is_set()

    @property
    def open_requests(self) -> int:
        return len(self._open)

    @property
    def last_reason(self) -> str:
        """Why the last session, or attempt at one, ended."""
        return self._link.last_reason

    def status_age(self, now: float) -> float:
        """Seconds since the engine last told its state; infinite when it never did."""
        return now - self._status_at if self.status is not None else float("inf")

    async def start(self) -> None:
        """Begins to dial. Returns at once; see wait_connected."""
        if self._ticker is None:
            self.live.ended(self._endpoint, "no session yet")
            self._ticker = asyncio.create_task(self._tick())

    async def close(self) -> None:
        """Aborts what is open and leaves."""
        for generation in list(self._open.values()):
            generation.abort()
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        self.close_now()

    def close_now(self) -> None:
        """The same for who can't wait, also after the loop's end: the engine learns of it when the
        session ends. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if asyncio._get_running_loop() is not None:
            for generation in list(self._open.values()):
                generation.abort()
            if self._ticker is not None:
                self._ticker.cancel()
            self._watch(None)
        self._link.close()
        self._context.term()
        self._connected_event.clear()
        if self.text is not None:
            self.text.close()

    async def wait_connected(self, timeout: float) -> None:
        """Raises EngineUnavailable when there is no session after `timeout` seconds."""
        try:
            await asyncio.wait_for(self._connected_event.wait(), timeout)
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
        inherits: bool = False,
        candidates: int | None = None,
    ) -> Generation:
        """Returns once the engine has accepted the request, and compiled its grammar if it has one.

        inherits: it is part of a request that was accepted, so it is not refused for lack of room.
        candidates: log-probabilities of each token to report, more than clients may ask for.
        Raises InvalidRequest, Overloaded (with retry_after; Limited is one), DeadlineExceeded or
        EngineUnavailable.  When the caller is cancelled while it waits, the request is aborted.
        """
        terms.check_time()
        welcome, text = self.welcome, self.text
        if not self.connected or welcome is None or text is None:
            raise EngineUnavailable("there is no session with an engine core at the moment")
        check_generates(welcome)
        check_prompt(prompt_token_ids, welcome)
        wanted = params.structured_outputs
        grammar = (
            None
            if wanted is None
            else wanted.grammar_within(
                welcome.limits.max_grammar_bytes, welcome.limits.grammar_kinds
            )
        )
        generation = Generation(
            name=name,
            prompt_token_ids=prompt_token_ids,
            params=params,
            sampling=token_sampling(params, welcome.seed, text.tokenizer, candidates),
            stopping=stopping(params, len(prompt_token_ids), welcome.limits.max_model_len),
            grammar=grammar,
            tokenizer=text.tokenizer,
            terms=terms,
            send=self._send,
            on_closed=self._forget,
            on_due=self._due.append,
            timed=timed,
            inherits=inherits,
        )
        self._enter(generation)
        self._send(generation.submission())
        try:
            await generation.accepted
            await generation.prepared
        except asyncio.CancelledError:
            generation.abort()
            raise
        return generation

    async def pool(
        self,
        prompt_token_ids: list[int],
        pooling: Pooling,
        *,
        name: str,
        terms: Terms = NO_TERMS,
    ) -> PoolResult:
        """What a pooling model makes of the input. Raises as `submit` does, and RequestFailed.

        When the caller is cancelled while it waits, the request is aborted.
        """
        terms.check_time()
        welcome = self.welcome
        if not self.connected or welcome is None:
            raise EngineUnavailable("there is no session with an engine core at the moment")
        check_task(pooling.task, welcome)
        check_input(prompt_token_ids, welcome)
        request = PoolRequest(
            name=name,
            prompt_token_ids=prompt_token_ids,
            pooling=pooling,
            terms=terms,
            send=self._send,
            on_closed=self._forget,
        )
        self._enter(request)
        self._send(request.submission())
        try:
            return await asyncio.shield(request.result)
        finally:
            request.abort()

    def _enter(self, generation: Generation | PoolRequest) -> None:
        generation.key = self._next_key
        self._next_key += 1
        self._open[generation.key] = generation

    def _forget(self, generation: Generation | PoolRequest) -> None:
        self._open.pop(generation.key, None)

    def _send(self, message: FromFrontend) -> bool:
        sent = self._link.send(message)
        # Sending may consume the socket's edge-triggered readiness: look again soon.
        if not self._pump_due:
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)
        return sent

    async def _tick(self) -> None:
        while True:
            self._pump()
            self._lose_patience()
            self.live.tick(time.monotonic())
            await asyncio.sleep(max(0.005, self._link.wait_hint(time.monotonic())))

    def _pump(self) -> None:
        self._pump_due = False
        if self._closed:
            return
        now = time.monotonic()
        for event in self._link.poll(now):
            self._handle(event, now)
        self._flush()
        self._watch(self._link.socket)
        if self._link.wait_hint(now) == 0.0 and not self._pump_due:
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _flush(self) -> None:
        for generation in self._due:
            generation.flush()
        self._due.clear()

    def _watch(self, socket: zmq.Socket[bytes] | None) -> None:
        """Has the loop wake `_pump` for the present socket's file descriptor only."""
        descriptor = int(socket.getsockopt(zmq.FD)) if socket is not None else None
        if descriptor == self._watched:
            return
        loop = asyncio.get_running_loop()
        if self._watched is not None:
            loop.remove_reader(self._watched)
        if descriptor is not None:
            loop.add_reader(descriptor, self._pump)
        self._watched = descriptor

    def _handle(self, event: Event[ToFrontend], now: float) -> None:
        if isinstance(event, Ended):
            self._session_lost(event.reason, now)
        elif isinstance(event, Opened):
            self._session_opened(event.message, event.frames)
        else:
            self._receive(event.message, now)

    def _receive(self, message: ToFrontend, now: float) -> None:
        match message:
            case Outputs(outputs):
                for output in outputs:
                    generation = self._open.get(output.request)
                    if generation is not None:
                        generation.take(output)
            case Status():
                self.status, self._status_at = message, now
            case Accepted(request):
                generation = self._open.get(request)
                if generation is not None:
                    generation.take_accepted()
            case Pooled(request):
                asked = self._open.get(request)
                if isinstance(asked, PoolRequest):
                    asked.take_pooled(message)
            case Prepared(request):
                generation = self._open.get(request)
                if generation is not None:
                    generation.take_prepared()
            case Rejected(request):
                self._rejected(self._open.get(request), message)
            case Snapshot():
                self.live.take(self._endpoint, message, now)
            case Welcome():
                self._link.end("a second welcome in one session")

    def _rejected(self, generation: Generation | PoolRequest | None, message: Rejected) -> None:
        if generation is not None:
            generation.fail(rejection(message))

    def _session_lost(self, reason: str, now: float) -> None:
        log.warning("session with the engine core ended", reason=reason)
        self._connected_event.clear()
        # An engine core that drained and left has not died of anything that it ran.
        self._left_in_order = self.status is not None and self.status.draining
        self.status = None
        self.live.ended(self._endpoint, reason)
        self._lost_at = now

    def _session_opened(self, welcome: ToFrontend, frames: list[bytes]) -> None:
        if not isinstance(welcome, Welcome):
            self._link.end("the engine core's first message was not a welcome")
            return
        try:
            self._adopt(welcome, frames)
        except PenstockError as error:
            log.error("the engine core's model can't be used", reason=str(error))
            self._link.end(str(error))
            return
        self._lost_at = None
        self._connected_event.set()
        new_boot = self._last_boot not in (None, welcome.boot)
        self._submit_again(died=new_boot and not self._left_in_order)
        self._last_boot = welcome.boot
        self.live.opened(self._endpoint, welcome, self._send)
        log.info("session opened", model=welcome.model, boot=welcome.boot)

    def _adopt(self, welcome: Welcome, frames: list[bytes]) -> None:
        """Takes over model text and limits; requests of another model can't go on."""
        previous = self.welcome
        text = self.text
        same = previous is not None and previous.digest == welcome.digest
        # The template may be one of the engine's settings: another with the same model.
        if not same or text is None or len(frames) != 2 or not text.template_is(frames[1]):
            self.text = ModelText.from_welcome(welcome, frames)
            if text is not None:
                text.close()
        self.welcome = welcome
        if previous is not None and previous.digest != welcome.digest:
            for generation in list(self._open.values()):
                generation.fail(RequestFailed("the engine core came back with another model"))

    def _submit_again(self, *, died: bool) -> None:
        resumed = [generation for generation in self._open.values() if not generation.finished]
        self._open.clear()
        for generation in resumed:
            generation.deaths += int(died)
            self._enter(generation)
            self._send(generation.submission())
        if resumed:
            log.info("requests submitted again", count=len(resumed))

    def _lose_patience(self) -> None:
        now = time.monotonic()
        if self._lost_at is None:
            return
        for generation in list(self._open.values()):
            if generation.terms.time_left_ms(now) == 0:
                generation.expire()
        if now - self._lost_at < RESUME_PATIENCE:
            return
        for generation in list(self._open.values()):
            generation.fail(EngineUnavailable("the engine core is gone and none came back"))


def check_prompt(prompt: list[int], welcome: Welcome) -> None:
    """Raises InvalidRequest for a prompt that can't run: empty, too long, ids out of range."""
    if not prompt:
        raise InvalidRequest("the prompt is empty; it must hold at least one token", param="prompt")
    limit = welcome.limits.max_model_len
    if len(prompt) >= limit:
        raise InvalidRequest(
            f"the prompt has {len(prompt)} tokens; this model's context is {limit} tokens, "
            "output included",
            param="prompt",
            code="context_length_exceeded",
        )
    vocabulary = welcome.limits.vocab_size
    if min(prompt) < 0 or max(prompt) >= vocabulary:
        bad = next(token for token in prompt if not 0 <= token < vocabulary)
        raise InvalidRequest(
            f"token id {bad} is not in the vocabulary, 0 to {vocabulary - 1}", param="prompt"
        )


def rejection(message: Rejected) -> PenstockError:
    """The exception that a Rejected stands for."""
    if message.code == "invalid":
        return InvalidRequest(message.message)
    retry_after = message.retry_after_ms / 1000
    if message.code == "limited":
        return Limited(message.message, retry_after=retry_after)
    if message.code == "overloaded":
        return Overloaded(message.message, retry_after=retry_after)
    return EngineUnavailable(message.message)
