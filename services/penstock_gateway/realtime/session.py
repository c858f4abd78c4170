"""A connection: its messages one after another, and the utterance that is being transcribed."""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import math
from collections import deque

import msgspec
from starlette.types import Receive, Send

from penstock import logs
from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock.terms import Terms
from penstock.transcription.begin import facts_of
from penstock.transcription.transcript import DurationUsage
from penstock.transcription.wishes import Wishes, check
from penstock_gateway.http.errors import ClientGone, as_http_error, leaving
from penstock_gateway.keys.caller import current
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

log = logs.get(__name__)

IDLE = 600.0
"""Seconds without a message after which a connection is closed."""


MOST_UTTERANCES = 8
"""That wait to be transcribed, one behind the other."""


class RealtimeSession:
    """name: of its requests to the engine.  terms: of all of them."""

    def __init__(
        self, service: Service, receive: Receive, send: Send, *, terms: Terms, name: str
    ) -> None:
        self._service = service
        self._receive = receive
        self._send = send
        self._terms = terms
        self._name = name
        self._messages = ClientMessages(service.config.unknown_fields)
        self._wishes: Wishes | None = None
        """None until the model was named."""
        self._model: str | None = None
        self._utterance: Utterance | None = None
        """That is open: more sound may come."""
        self._work: deque[asyncio.Task[None]] = deque()

    async def run(self) -> None:
        """Until the client goes, or says nothing for too long."""
        await self._say(SessionCreated.new())
        with self._service.media.lease(self._terms.tenant) as lease:
            try:
                while (text := await self._next()) is not None:
                    await self._handle(text, lease)
            finally:
                for task in self._work:
                    task.cancel()
                await asyncio.gather(*self._work, return_exceptions=True)

    async def _next(self) -> bytes | None:
        """The next message; None: there will be none."""
        try:
            async with asyncio.timeout(IDLE):
                message = await self._receive()
        except TimeoutError:
            await self._fail(f"nothing was said for {IDLE:g} s", "idle")
            await self._send({"type": "websocket.close", "code": 1000})
            return None
        if message["type"] == "websocket.disconnect":
            return None
        text = message.get("text")
        return b"" if text is None else text.encode()

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
                "the session can't be changed while sound is transcribed: commit it as final first",
                code="utterance_open",
            )
        wishes = Wishes(language=message.language or None, prompt=message.prompt or "")
        async with self._service.using(message.model) as asked:
            text = asked.engine.text
            check(wishes, facts_of(text), text.tokenizer)
        self._terms = msgspec.structs.replace(self._terms, adapter=asked.adapter)
        self._wishes, self._model = wishes, message.model

    def _opened(self, lease: MediaLease) -> Utterance:
        if self._utterance is None:
            self._utterance = Utterance(self._service, lease, self._model)
        return self._utterance

    async def _commit(self, lease: MediaLease, *, final: bool) -> None:
        if self._wishes is None:
            raise InvalidRequest(
                "the model hasn't been named yet: send session.update first",
                code="model_not_validated",
            )
        utterance = self._opened(lease)
        if not utterance.begun:
            await self._begin(utterance, self._wishes)
        if final:
            utterance.end()
            self._utterance = None

    async def _begin(self, utterance: Utterance, wishes: Wishes) -> None:
        while self._work and self._work[0].done():
            self._work.popleft()
        if len(self._work) >= MOST_UTTERANCES:
            raise InvalidRequest(
                f"{MOST_UTTERANCES} utterances wait to be transcribed: no more may",
                code="too_many_utterances",
            )
        if self._service.draining:
            raise leaving()
        if self._service.limits is not None:
            await self._service.limits.arrived(current.get(), counted=True)
        utterance.wishes, utterance.begun = wishes, True
        before = self._work[-1] if self._work else None
        self._work.append(asyncio.create_task(self._transcribe(utterance, before)))

    async def _transcribe(self, utterance: Utterance, before: asyncio.Task[None] | None) -> None:
        """before: the utterance whose text comes first."""
        with self._service.answering(), contextlib.closing(utterance):
            try:
                if before is not None:
                    await asyncio.wait((before,))
                async for gained in utterance.texts(self._terms, self._name):
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
            log.error("a realtime message failed", request=self._name, exception=True)
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
