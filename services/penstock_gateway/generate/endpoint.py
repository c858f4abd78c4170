"""What all generating endpoints do, from the body's first byte to the reply's last.

body -> struct -> checks -> prompt ids -> Submit -> Accepted -> deltas -> reply
"""

from __future__ import annotations

import time
import uuid
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.client.computing import fingerprint_of_parts
from penstock.client.placement import Computing
from penstock.client.request_bounds import check_generates
from penstock.client.turn_budget import forget
from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock.media.item_names import PromptMedia
from penstock.media.words import WORDS
from penstock.request.terms import Terms
from penstock_gateway.generate.answer import StreamedAnswer, searched_answer, whole_answer
from penstock_gateway.generate.batch import GenerationBatch, Withdrawal
from penstock_gateway.generate.job import Job, PreparedRequest
from penstock_gateway.generate.receipt import receipt_wish, receipted
from penstock_gateway.generate.replay import AnswerBasis, ReplayedRequest, replay_of
from penstock_gateway.generate.reply import ReplyHead
from penstock_gateway.generate.reply_spec import ReplySpec
from penstock_gateway.generate.search import search_all
from penstock_gateway.generate.timeline import TimelineRecorder
from penstock_gateway.http.body_room import HeldBody
from penstock_gateway.http.errors import HTTPError
from penstock_gateway.http.events import (
    SERVER_SENT_EVENTS,
    EventStream,
    failed_stream,
    room_of,
    stream_while_connected,
    while_connected,
)
from penstock_gateway.http.replies import send_json
from penstock_gateway.models.backend import AskedModel, EngineInfo
from penstock_gateway.preparing.cost import is_small
from penstock_gateway.preparing.request import RemoteBody
from penstock_gateway.request.endpoint import JsonEndpoint
from penstock_gateway.request.fields import (
    RequestFields,
    check_request_id,
    request_terms,
    session_of,
    terms_headers,
)
from penstock_gateway.tracing import trace as tracing

if TYPE_CHECKING:
    from penstock_gateway.request.fields import TermsHeaders

Fields = TypeVar("Fields", bound=RequestFields)

_remote: ContextVar[RemoteBody[Any] | None] = ContextVar("remote", default=None)
"""The body of the request being handled, where a preparer reads it."""
_replay: ContextVar[ReplayedRequest | None] = ContextVar("replay", default=None)
"""The replay that the request being handled belongs to, if any."""


class HTTPCall(NamedTuple):
    """An HTTP request that is being answered. arrived: when its headers had come, monotonic."""

    scope: Scope
    receive: Receive
    send: Send
    headers: TermsHeaders
    recorder: TimelineRecorder
    arrived: float


class GenerateEndpoint(JsonEndpoint[Fields], Generic[Fields]):
    """An endpoint that generates text from a JSON body. Subclasses say what the body and the reply
    look like."""

    id_prefix: str
    """Prefix of the ids in its replies."""
    replayable = False
    """Whether `replays` is true of its requests, mostly."""
    stream_form = SERVER_SENT_EVENTS
    gives_receipts = False
    """Whether x-penstock-receipt means something here."""

    reply_spec: type[ReplySpec]
    """The type of what its prepared requests say of their replies."""

    @abstractmethod
    def check(self, request: Fields) -> None:
        """Raises InvalidRequest for a body that is wrong whatever the model."""

    @abstractmethod
    async def prepare(
        self, request: Fields, engine: EngineInfo, head: ReplyHead, lease: MediaLease
    ) -> PreparedRequest:
        """Returns the request with its prompts tokenised and its sampling parameters filled in.
        lease: keeps the request's media in memory until the request ends.

        Raises InvalidRequest, and the errors of preparing media.
        """

    def replays(self, request: Fields) -> bool:
        """Whether the request's answer can be had again, see generate.replay."""
        return self.replayable

    def failure(self, error: HTTPError) -> bytes:
        """The last bytes of a stream that fails before its job is prepared."""
        return failed_stream(error)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        arrived = time.monotonic()
        headers = terms_headers(scope)
        recorder = TimelineRecorder(scope, service.config.slow_request_seconds)
        call = HTTPCall(scope, receive, send, headers, recorder, arrived)
        given = await self.given(scope, receive)
        if isinstance(given, bytes):
            async with RemoteBody(
                service,
                self,
                given,
                scope["headers"],
                tenant=headers.tenant,
                digested=headers.repeats,
                held=scope.get(HeldBody.SCOPE),
            ) as body:
                await while_connected(body.open(), receive)
                token = _remote.set(body)
                try:
                    await self.answer(body.light, call)
                finally:
                    _remote.reset(token)
            return
        self.check_all(given)
        await self.answer(given, call)

    async def given(self, scope: Scope, receive: Receive) -> bytes | Fields:
        """The request; the body, as `understood` takes it, where a preparer is to make the request
        of it."""
        body = await self.body(scope, receive)
        return self.understood(body, scope["headers"]) if is_small(body) else body

    def check_all(self, request: Fields) -> None:
        """Raises InvalidRequest for a request that is wrong whatever the model."""
        check_stream_options(request)
        check_request_id(request)
        self.check(request)

    def decoded_light(self, written: bytes) -> Fields:
        """A request whose large fields were left out, and which was checked before."""
        return self._decoder.decode(written)

    async def answer(self, request: Fields, call: HTTPCall) -> None:
        """Answers a request that is right by itself. Raises what else is wrong with it."""
        service, remote = self._service, _remote.get()
        scope, receive, send, headers, recorder, arrived = call
        given = self.gives_receipts
        recorder.receipt = receipt_wish(request, headers.receipt, service.receipts, given=given)
        terms = msgspec.structs.replace(
            request_terms(request, headers, arrived),
            session=session_of(request, headers.session_id),
            shared=service.config.share_identical_requests
            if headers.shares is None
            else headers.shares,
        )
        replays, resumable = self.replays(request), _resumable(request)
        if resumable and not replays:
            raise InvalidRequest(
                "stream_options.resumable works for chat, completions, messages, and responses that"
                " are not in the background; it must be null",
                param="stream_options.resumable",
                code="unsupported_value",
            )
        if replays and (resumable or headers.repeats):
            withdrawal = scope.get(Withdrawal.SCOPE)
            digest = None if remote is None else remote.digest
            _replay.set(await replay_of(headers, request, self.id_prefix, withdrawal, digest))
        if remote is not None:
            remote.whole = bool(recorder.receipt)
        with service.answering:
            if request.stream:
                events = EventStream(
                    send,
                    keepalive=service.config.keepalive_interval,
                    room=room_of(scope),
                    failure=self.failure,
                    form=self.stream_form,
                )
                work = self._stream(request, terms, recorder, events)
                await stream_while_connected(work, receive, events)
            else:
                payload = await while_connected(self._whole(request, terms, recorder), receive)
                await send_json(send, 200, payload, recorder.headers())

    async def _whole(
        self, request: Fields, terms: Terms, recorder: TimelineRecorder
    ) -> list[bytes]:
        async with self._service.models.using(request.model, terms.deadline) as asked:
            recorder.waited(asked.waited)
            with self._service.media.lease(terms.tenant, terms.deadline) as lease:
                job = await self._job(request, asked, lease)
                job = await receipted(job, asked, recorder.receipt, self._service.receipts)
                return await self._answered(job, asked, terms, recorder)

    async def _answered(
        self, job: Job, asked: AskedModel, terms: Terms, recorder: TimelineRecorder
    ) -> list[bytes]:
        terms = await _placed(job, asked, terms)
        async with _blaming(job):
            if job.search is not None:
                _computed_with(job, terms.fingerprint)
                found = await search_all(
                    job.search,
                    asked.client,
                    job.prompt_token_ids,
                    job.params,
                    name=recorder.name,
                    terms=terms,
                    ready=job.ready,
                )
                return await searched_answer(found, job.reply, job.prompt_tokens)
            async with (
                await self._submit(job, asked, terms, recorder, read_at_end=True) as batch,
                recorder.watching(batch.timings, batch.n),
            ):
                recorder.shared_by(batch.shared)
                pieces = await whole_answer(batch, job.reply, job.prompt_tokens, recorder)
            if len(job.prompt_token_ids) > 1:
                await forget(job.prompt_token_ids)
            return pieces

    async def _stream(
        self, request: Fields, terms: Terms, recorder: TimelineRecorder, events: EventStream
    ) -> None:
        async with self._service.models.using(request.model, terms.deadline) as asked:
            recorder.waited(asked.waited)
            with self._service.media.lease(terms.tenant, terms.deadline) as lease:
                job = await self._job(request, asked, lease)
                job = await receipted(job, asked, recorder.receipt, self._service.receipts)
                events.failure = job.reply.failed
                await self._events(job, asked, request, terms, recorder, events)

    async def _events(
        self,
        job: Job,
        asked: AskedModel,
        request: Fields,
        terms: Terms,
        recorder: TimelineRecorder,
        events: EventStream,
    ) -> None:
        terms = await _placed(job, asked, terms)
        async with (
            _blaming(job),
            await self._submit(job, asked, terms, recorder, read_at_end=False) as batch,
        ):
            events.headers = recorder.shared_by(batch.shared)
            replay = job.replay
            events.breaks_off = replay is not None and replay.resumable
            answer = StreamedAnswer(
                job.reply if replay is None else replay.reply(job.reply, batch, job.head),
                request.stream_options,
                batch.choices,
                job.prompt_tokens,
                recorder,
                0 if replay is None else replay.known_tokens,
            )
            async with recorder.watching(batch.timings, batch.n):
                await answer.run(batch, events)

    async def _job(self, request: Fields, asked: AskedModel, lease: MediaLease) -> Job:
        check_generates(asked.engine.welcome)
        replay = _replay.get()
        adapter = "" if asked.adapter is None else asked.adapter.digest
        held = None if replay is None else await replay.held(asked.client, adapter)
        name = uuid.uuid4().hex if replay is None else replay.name
        id = f"{self.id_prefix}{request.request_id or name}"
        head = ReplyHead(id=id, model=asked.name, adapter=adapter)
        if replay is not None:
            request = replay.fixed(request, head, asked.engine.welcome.seed)
        model = f"{asked.name} {asked.engine.welcome.digest} {adapter}"
        remote = _remote.get()
        if remote is None:
            prepared = await self.prepare(request, asked.engine, head, lease)
        else:
            seed = None if replay is None else getattr(request, "seed", None)
            basis = None if replay is None else model
            prepared = await remote.prepared(request, asked, head, lease, seed=seed, basis=basis)
        job = replace(prepared.job(head, asked.engine), held=held, replay=replay)
        if replay is not None:
            replay.check_choices(len(job.prompt_token_ids) * job.params[0].n)
            await replay.settle(
                prepared.basis
                or AnswerBasis(job.prompt_token_ids, job.params, job.media, model, job.reading)
            )
        if job.media is not None:
            _refuse_beside_media(request, job.media)
        trace = tracing.current.get()
        if trace is not None:
            trace.asks(asked.name, head.id, job.params[0], streamed=bool(request.stream))
        return job

    async def _submit(
        self,
        job: Job,
        asked: AskedModel,
        terms: Terms,
        recorder: TimelineRecorder,
        *,
        read_at_end: bool,
    ) -> GenerationBatch:
        replay = job.replay
        batch = await GenerationBatch.submit(
            asked.client,
            job.prompt_token_ids,
            job.params,
            name=recorder.name,
            terms=terms,
            timed=recorder.wanted,
            media=job.media,
            prediction=job.prediction,
            read_at_end=read_at_end,
            known=() if replay is None else replay.known,
            claims=() if replay is None else replay.claims(len(job.prompt_token_ids)),
            withdrawal=None if replay is None else replay.withdrawal,
            ready=job.ready,
        )
        job.head.computed = batch.computing
        remote = _remote.get()
        if remote is not None:
            remote.forget()
        return batch


async def _placed(job: Job, asked: AskedModel, terms: Terms) -> Terms:
    """The terms on which a job is submitted. What is computed in several parts, or shows nothing of
    where it is, is held to what would compute its first prompt now."""
    held = job.held
    if held is None and (job.search is not None or len(job.prompt_token_ids) > 1):
        held = await fingerprint_of_parts(asked.client, job.prompt_token_ids[0], terms)
    return msgspec.structs.replace(terms, adapter=asked.adapter, fingerprint=held)


def _computed_with(job: Job, fingerprint: str | None) -> None:
    """Notes what all of the answer is computed with."""
    computing = None if fingerprint is None else Computing(fingerprint)
    job.head.computed = lambda: computing


def left_out() -> frozenset[str]:
    """Names of the fields that the request being handled has, and that are elsewhere."""
    remote = _remote.get()
    return frozenset() if remote is None else remote.dropped


def _resumable(request: RequestFields) -> bool:
    return request.stream_options is not None and bool(request.stream_options.resumable)


def _refuse_beside_media(request: RequestFields, given: PromptMedia) -> None:
    """Raises InvalidRequest for options that cut or copy a prompt without its media."""
    kinds = dict.fromkeys(item.kind for item in given.media.items)
    for name in ("truncate_prompt_tokens", "use_beam_search"):
        if getattr(request, name, None):
            media = " and ".join(f"{WORDS[kind]}s" for kind in kinds)
            raise InvalidRequest(
                f"{name} can't be combined with {media}", param=name, code="unsupported_value"
            )


@asynccontextmanager
async def _blaming(job: Job) -> AsyncIterator[None]:
    try:
        yield
    except InvalidRequest as error:
        if job.blame_again is not None and (clearer := await job.blame_again(error)) is not None:
            raise clearer from error
        raise job.blame(error) from error


def check_stream_options(request: RequestFields) -> None:
    """Raises InvalidRequest for stream_options of a request that doesn't stream."""
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest(
            "stream_options needs stream: true", param="stream_options", code="invalid_value"
        )
