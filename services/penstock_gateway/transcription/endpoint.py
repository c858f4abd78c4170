"""POST /v1/audio/transcriptions and /v1/audio/translations, as OpenAI has them.

form -> struct -> spectrogram -> windows -> Submits -> segments -> reply
"""

from __future__ import annotations

import time
import uuid
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.client.request_bounds import check_generates
from penstock.media.budget import MediaLease
from penstock.media.sources import MediaSource
from penstock.request.terms import Terms
from penstock.transcription.begin import begin, facts_of
from penstock.transcription.transcript import DurationUsage, Transcript, TranscriptReply
from penstock_gateway.http.errors import leaving
from penstock_gateway.http.events import (
    DONE,
    EventStream,
    room_of,
    stream_while_connected,
    while_connected,
)
from penstock_gateway.http.operations import OperationRoute, posting
from penstock_gateway.http.replies import send_whole
from penstock_gateway.http.scope_keys import REQUEST_ID
from penstock_gateway.models.backend import AskedModel
from penstock_gateway.request.body import content_type, feed_body
from penstock_gateway.request.fields import check_request_id, request_terms, terms_headers
from penstock_gateway.request.multipart import Form, FormReader, boundary_of
from penstock_gateway.request.skipping import skipping
from penstock_gateway.service import Service
from penstock_gateway.tracing import trace as tracing
from penstock_gateway.transcription.request import (
    FILE,
    AnyRequest,
    TranscriptionRequest,
    TranslationRequest,
    check,
    read_form,
    wishes_of,
)


class SpeechEndpoint:
    """An ASGI application for one of the paths. kind: the struct of its forms."""

    def __init__(self, service: Service, kind: type[Any]) -> None:
        self._service = service
        self._kind = skipping(kind) if service.config.unknown_fields == "ignore" else kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        arrived = time.monotonic()
        headers = terms_headers(scope)
        with service.media.lease(headers.tenant) as lease:
            form = await self._form(scope, receive, lease)
            if service.draining:
                raise leaving()
            request: AnyRequest = read_form(form, self._kind)
            check_request_id(request)
            check(request)
            terms = request_terms(request, headers, arrived)
            lease.deadline = terms.deadline
            with service.answering:
                course = Course(service, request, form, lease, terms, scope[REQUEST_ID])
                await self._answer(course, scope, receive, send)

    async def _form(self, scope: Scope, receive: Receive, lease: MediaLease) -> Form:
        """Raises as `feed_body` does, and what the lease raises for the file."""
        service = self._service
        file = MediaSource(FILE, kind="audio")
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            taken += size
            if taken > service.media.max_bytes:
                raise file.too_large(service.media.max_bytes)
            lease.take(size, FILE)

        reader = FormReader(boundary_of(content_type(scope)), FILE, take)
        await feed_body(
            scope,
            receive,
            reader.feed,
            limit=service.config.max_body_bytes,
            timeout=service.patience.body,
        )
        return reader.finish()

    async def _answer(self, course: Course, scope: Scope, receive: Receive, send: Send) -> None:
        if not course.request.stream:
            payload, content_type = await while_connected(course.whole(), receive)
            await send_whole(send, 200, payload, content_type)
            return
        keepalive = self._service.config.keepalive_interval
        events = EventStream(send, keepalive=keepalive, room=room_of(scope))
        await stream_while_connected(course.stream(events), receive, events)


class Course:
    """One request on its way. form: has its file, until it is begun.  lease: holds its recording.
    name: of its requests to the engine."""

    def __init__(
        self,
        service: Service,
        request: AnyRequest,
        form: Form,
        lease: MediaLease,
        terms: Terms,
        name: str,
    ) -> None:
        self.request = request
        self._form = form
        self._service = service
        self._lease = lease
        self._terms = terms
        self._name = name

    async def whole(self) -> tuple[bytes, str]:
        """The unstreamed reply, and its content type."""
        async with self._using() as asked:
            transcript = await (await self._begun(asked)).filled()
            return transcript.whole(self.request.response_format or "json")

    async def stream(self, events: EventStream) -> None:
        """The reply as events: the text of each segment once its window is settled, then all."""
        async with self._using() as asked:
            await self._tell(await self._begun(asked), events)

    async def _tell(self, transcript: Transcript, events: EventStream) -> None:
        async for segments in transcript.transcriber.segments():
            gained = (transcript.add(segment) for segment in segments)
            out = b"".join(event(TextDelta(delta=text)) for text in gained if text)
            if out:
                await events.write(out)
        done = TextDone(text=transcript.text, usage=transcript.usage)
        await events.write(event(done) + DONE, last=True)

    def _using(self) -> AbstractAsyncContextManager[AskedModel]:
        return self._service.models.using(self.request.model, self._terms.deadline)

    async def _begun(self, asked: AskedModel) -> Transcript:
        service, request, engine = self._service, self.request, asked.engine
        check_generates(engine.welcome)
        facts = facts_of(engine.text)
        wishes = wishes_of(request)
        trace = tracing.current.get()
        if trace is not None:
            name = request.request_id or uuid.uuid4().hex
            streamed = bool(request.stream)
            params = wishes.params(wishes.temperature, facts.max_tokens)
            trace.asks(asked.name, f"transcription-{name}", params, streamed=streamed)
        file = self._form.take_file()
        self._lease.give(len(file))  # The desk takes it up, and nobody else holds it from now on.
        source = MediaSource(FILE, kind="audio", data=file)
        transcriber = await begin(
            asked.client,
            service.media,
            engine.text,
            source,
            self._lease,
            wishes,
            name=self._name,
            terms=msgspec.structs.replace(self._terms, adapter=asked.adapter),
        )
        return Transcript(transcriber)


TRANSCRIBE = posting(
    "/v1/audio/transcriptions",
    "Transcribe a recording in its spoken language",
    TranscriptionRequest,
    TranscriptReply,
    body_type="multipart/form-data",
    tag="audio",
    streams=True,
    headers=("x-deadline-ms",),
)
TRANSLATE = posting(
    "/v1/audio/translations",
    "Translate a recording into English",
    TranslationRequest,
    TranscriptReply,
    body_type="multipart/form-data",
    tag="audio",
    streams=True,
    headers=("x-deadline-ms",),
)


def routes(service: Service) -> list[OperationRoute]:
    """The routes of transcription and translation."""
    return [
        TRANSCRIBE.route(SpeechEndpoint(service, TranscriptionRequest)),
        TRANSLATE.route(SpeechEndpoint(service, TranslationRequest)),
    ]


# The events of a streamed transcript, in OpenAI's shapes.


class TextDelta(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["transcript.text.delta"] = "transcript.text.delta"
    delta: str


class TextDone(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["transcript.text.done"] = "transcript.text.done"
    text: str
    usage: DurationUsage


def event(value: msgspec.Struct) -> bytes:
    """A value as a server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
