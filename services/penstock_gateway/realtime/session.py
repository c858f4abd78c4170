"""A connection: its messages, one at a time, and the utterance that is being transcribed."""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import math
from collections import deque
from typing import NamedTuple

import msgspec
from starlette.types import Message, Receive, Send

from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock.process import logs
from penstock.request.terms import Terms
from penstock.transcription.begin import facts_of
from penstock.transcription.transcript import DurationUsage
from penstock.transcription.wishes import Wishes, check
from penstock_gateway.http.errors import ClientGone, as_http_error, leaving, logged_cause
from penstock_gateway.http.socket_protocol import Stay
from penstock_gateway.http.sockets import closing
from penstock_gateway.keys.ring import current, renew
from penstock_gateway.realtime.messages import (
    Append,
    ClientMessages,
    Commit,
    ErrorMessage,
    ServerMessage,
    SessionCreated,
    SessionUpdate,
    TranscriptionDelta,
    TranscriptionDone,
)
from penstock_gateway.realtime.utterance import AUDIO, Utterance
from penstock_gateway.service import Service
from penstock_gateway.tracing import trace as tracing

log = logs.get(__name__)

IDLE = 600.0
"""Seconds without a message, and without text to come, after which a connection is closed."""
NORMAL = 1000
"""Code of RFC 6455, section 7.4.1."""
MOST_UTTERANCES = 8
"""Utterances that wait to be transcribed, one after the other."""


class Work(NamedTuple):
    """An utterance, and the task that transcribes it."""

    utterance: Utterance
    task: asyncio.Task[None]

    @property
    def busy(self) -> bool:
        """Whether its text is waited for."""
        return not self.task.done() and self.utterance.busy


class RealtimeSession:
    """name: of its requests to the engine.  terms: of all of them.  stay: of its connection."""

    def __init__(
        self,
        service: Service,
        receive: Receive,
        send: Send,
        *,
        terms: Terms,
        name: str,
        stay: Stay | None = None,
    ) -> None:
        self._service = service
        self._receive = receive
        self._send = send
        self._terms = terms
        self._name = name
        self._stay = stay or Stay()
        self._messages = ClientMessages(service.config.unknown_fields)
        self._wishes: Wishes | None = None
        """The session's settings; None until the model was named."""
        self._model = ""
        self._named: str | None = None
        """The model as the client calls it."""
        self._utterance: Utterance | None = None
        """The utterance that is open: more sound may come."""
        self._work: deque[Work] = deque()

    async def run(self) -> None:
        """Runs the session until the client goes, or says nothing for too long."""
        await self._say(SessionCreated.new())
        with self._service.media.lease(self._terms.tenant) as lease:
            try:
                while (text := await self._next()) is not None:
                    await self._handle(text, lease)
                    await asyncio.sleep(0)  # Many short messages may wait: others have their turn.
            finally:
                tasks = [work.task for work in self._work]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _next(self) -> bytes | None:
        """The text of the next message; None: there will be none."""
        while (message := await self._received()) is not None:
            text = message.get("text")
            if text is not None:
                return str(text).encode()
            await self._fail(
                "the message is binary; JSON as text is needed, in which "
                "input_audio_buffer.append has audio in base64",
                "invalid_type",
            )
        return None

    async def _received(self) -> Message | None:
        """The next message, of text or bytes; None: there will be none."""
        message = None
        while message is None:
            try:
                async with asyncio.timeout(IDLE):
                    message = await self._receive()
            except TimeoutError:
                if any(work.busy for work in self._work):
                    continue  # It is the client who waits.
                reason = f"the connection was idle for {IDLE:g} s"
                await self._fail(reason, "idle")
                await self._send(closing(NORMAL, reason))
                return None
        return None if message["type"] == "websocket.disconnect" else message

    async def _handle(self, text: bytes, lease: MediaLease) -> None:
        try:
            match self._messages.read(text):
                case SessionUpdate() as message:
                    await self._update(message)
                case Append() as message:
                    self._opened(lease).append(samples_of(message))
                case Commit() as message:
                    await self._commit(lease, final=bool(message.final))
        except ClientGone:
            raise
        except Exception as error:
            await self._tell(error)

    async def _update(self, message: SessionUpdate) -> None:
        if self._utterance is not None and self._utterance.begun:
            raise InvalidRequest(
                "the session can't be changed while audio is being transcribed: commit it as final "
                "first",
                code="utterance_open",
            )
        wishes = Wishes(language=message.language or None, prompt=message.prompt or "")
        async with self._service.models.using(message.model) as asked:
            text = asked.engine.text
            check(wishes, facts_of(text), text.tokenizer)
        self._terms = msgspec.structs.replace(self._terms, adapter=asked.adapter)
        self._wishes, self._model, self._named = wishes, asked.name, message.model

    def _opened(self, lease: MediaLease) -> Utterance:
        if self._utterance is None:
            self._utterance = Utterance(self._service, lease, self._named)
        return self._utterance

    async def _commit(self, lease: MediaLease, *, final: bool) -> None:
        if self._wishes is None:
            raise InvalidRequest(
                "no model has been set: send session.update first",
                code="model_not_validated",
            )
        utterance = self._opened(lease)
        if not utterance.begun:
            await self._begin(utterance, self._wishes)
        if final:
            utterance.end()
            self._utterance = None

    async def _begin(self, utterance: Utterance, wishes: Wishes) -> None:
        while self._work and self._work[0].task.done():
            self._work.popleft()
        if len(self._work) >= MOST_UTTERANCES:
            raise InvalidRequest(
                f"{MOST_UTTERANCES} utterances are waiting to be transcribed, the maximum",
                code="too_many_utterances",
            )
        if self._service.draining:
            raise leaving()
        caller = current.get()
        renew(caller, self._service.ring)
        caller.check_model(self._model)
        grant = None if caller.key is None else caller.key.grant
        terms = msgspec.structs.replace(self._terms, grant=grant)
        if self._service.limits is not None:
            await self._service.limits.arrived(caller, counted=True)
        # It may have been opened before the model was named.
        utterance.wishes, utterance.model, utterance.begun = wishes, self._named, True
        self._trace(wishes)
        before = self._work[-1].task if self._work else None
        task = asyncio.create_task(self._transcribe(utterance, before, terms))
        self._work.append(Work(utterance, task))

    def _trace(self, wishes: Wishes) -> None:
        """Tells the connection's span what is asked for."""
        trace = tracing.current.get()
        if trace is not None:
            facts = facts_of(self._service.models.backend_of(self._named).text())
            params = wishes.params(wishes.temperature, facts.max_tokens)
            trace.asks(self._model, f"realtime-{self._name}", params, streamed=True)

    async def _transcribe(
        self, utterance: Utterance, before: asyncio.Task[None] | None, terms: Terms
    ) -> None:
        """before: the utterance whose text comes first."""
        with self._service.answering, self._stay.held(), contextlib.closing(utterance):
            try:
                if before is not None:
                    await asyncio.wait((before,))
                async for gained in utterance.texts(terms, self._name):
                    await self._say(TranscriptionDelta(delta=gained))
                usage = DurationUsage(seconds=math.ceil(utterance.seconds))
                await self._say(TranscriptionDone(text=utterance.text.text, usage=usage))
            except ClientGone:
                return
            except Exception as error:
                if self._utterance is utterance:
                    self._utterance = None
                await self._tell(error)

    async def _tell(self, error: Exception) -> None:
        answer = as_http_error(error)
        if answer.status == 500:
            log.error("a realtime message failed", request=self._name, **logged_cause(error))
        await self._fail(answer.body.message, answer.body.code)

    async def _fail(self, message: str, code: str | None) -> None:
        with contextlib.suppress(ClientGone):
            await self._say(ErrorMessage(error=message, code=code))

    async def _say(self, message: ServerMessage) -> None:
        """Raises ClientGone, also for one that doesn't read."""
        text = msgspec.json.encode(message).decode()
        try:
            async with asyncio.timeout(self._service.patience.reader):
                await self._send({"type": "websocket.send", "text": text})
        except (TimeoutError, OSError, RuntimeError) as error:
            # The server raises these where the connection is closed, or closing.
            raise ClientGone(repr(error)) from None


def samples_of(message: Append) -> bytes:
    """16-bit samples. Raises InvalidRequest."""
    try:
        data = binascii.a2b_base64(message.audio, strict_mode=True)
    except ValueError:
        raise InvalidRequest(f"{AUDIO} is not base64", param=AUDIO, code="invalid_audio") from None
    if not data or len(data) % 2:
        raise InvalidRequest(
            f"{AUDIO} has {len(data)} bytes; whole samples of two bytes each are needed",
            param=AUDIO,
            code="invalid_audio",
        )
    return data
