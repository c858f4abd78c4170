"""A preparer's own side: it decodes, checks and prepares one body at a time, until its socket is
closed.

Bounds: an address space of so many bytes more than it began with, and the processor seconds that
come with each body; the timer's signal has no handler, so it ends the process wherever it is.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from penstock.client.ready_params import ready_params, without_ready
from penstock.client.request_bounds import check_prompt
from penstock.errors import InvalidRequest
from penstock.process import logs
from penstock.process.isolated_child import confine
from penstock.process.memory import address_space, resident_bytes
from penstock.request.structured_outputs import PARAM
from penstock_gateway.generate.job import PreparedRequest
from penstock_gateway.generate.replay import AnswerBasis, digest_of_body
from penstock_gateway.generate.reply import ReplyHead
from penstock_gateway.http.errors import as_http_error
from penstock_gateway.http.notes import begin_notes
from penstock_gateway.http.operations import QUERY
from penstock_gateway.http.scope_keys import REQUEST_ID
from penstock_gateway.keys.ring import Caller, current
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.preparing.channel import Channel
from penstock_gateway.preparing.error_data import data_of, data_of_http, exception_of
from penstock_gateway.preparing.home_media import HomeDesk, HomeLease
from penstock_gateway.preparing.home_models import HomeModels, engine_of
from penstock_gateway.preparing.home_records import HomeRecords, HomeStore
from penstock_gateway.preparing.light import light_request
from penstock_gateway.preparing.whole import Parameters
from penstock_gateway.preparing.wire import (
    FailedBody,
    Grown,
    HandledWhole,
    HandleWhole,
    InvalidRequestName,
    OpenBody,
    OpenedBody,
    PrepareBody,
    PreparedBody,
    PreparerTask,
    WeighBody,
    WeighedBody,
    encoded_spec,
)
from penstock_gateway.request.endpoint import JsonEndpoint, with_body
from penstock_gateway.request.tokenising import tenant

if TYPE_CHECKING:
    from starlette.types import Message, Scope

    from penstock.request.sampling_params import SamplingParams
    from penstock_gateway.generate.endpoint import GenerateEndpoint
    from penstock_gateway.service import Service

log = logs.get(__name__)

LARGE = 96 << 20
"""Bytes of memory more than at the beginning from which on the process gives way to a new one."""


_FIRST = "The first text, of 1 line.\n"


class Preparer:
    """service: the gateway's own, in a fork of it.  memory: bytes that it may have more than it
    begins with."""

    def __init__(self, service: Service, memory: int) -> None:
        self._service = service
        self._endpoints: Sequence[JsonEndpoint[Any]] = service.preparers.endpoints
        self._memory = memory
        self._opened: tuple[GenerateEndpoint[Any], Any, OpenBody] | None = None

    def warm(self) -> None:
        """Has templates be filled in this process and its forks. What is made the first time that a
        text is tokenised or a template filled is made here, for all of them."""
        for backend in self._service.models.backends:
            text = backend.client.text
            if text is None:
                continue
            text.tokenizer.encode(_FIRST)
            if text.template is not None:
                text.template.fill_here()

    def run(self, connection: socket.socket) -> None:
        """Serves the gateway at the other end."""
        used = address_space()
        if used is not None:
            confine(used + self._memory)
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(self._serve(Channel(connection)))

    async def _serve(self, channel: Channel) -> None:
        self._service.media = HomeDesk(self._service.media, channel)  # type: ignore[assignment]
        if self._service.store is not None:
            self._service.store = HomeStore(self._service.store, channel)  # type: ignore[assignment]
        if self._service.held is not None:
            self._service.held = HomeRecords("responses", channel)  # type: ignore[assignment]
        models = HomeModels(self._service.models, channel)
        self._service.models = models  # type: ignore[assignment]
        begun = resident_bytes() or 0
        channel.begin()
        while (task := await channel.next_task()) is not None:
            answer = await self._answer(task)
            if not isinstance(answer, OpenedBody):
                signal.setitimer(signal.ITIMER_PROF, 0)
            leaves = self._opened is None and (resident_bytes() or 0) > begun + LARGE
            if leaves:
                await channel.send(Grown())
            await channel.send(answer)
            if leaves:
                return

    async def _answer(
        self, task: PreparerTask
    ) -> OpenedBody | PreparedBody | HandledWhole | WeighedBody | FailedBody:
        try:
            match task:
                case OpenBody():
                    return self._open(task)
                case PrepareBody():
                    return await self._prepare(task)
                case HandleWhole():
                    return await self._handle(task)
                case WeighBody():
                    return _weighed(task)
        except Exception as error:
            self._opened = None
            data = data_of(error)
            if data is None:
                log.error("a request can't be prepared", exception=True)
                data = data_of_http(as_http_error(error))
            return FailedBody(data)

    def _open(self, task: OpenBody) -> OpenedBody:
        signal.setitimer(signal.ITIMER_PROF, task.cpu)
        endpoint = cast("GenerateEndpoint[Any]", self._endpoints[task.endpoint])
        _begin_for(task)
        request = endpoint.understood(task.body, task.headers)
        endpoint.check_all(request)
        digest = None
        if task.digested or (request.stream_options and request.stream_options.resumable):
            digest = digest_of_body(endpoint.id_prefix, task.tenant, request)
        self._opened = endpoint, request, task
        light, dropped = light_request(request)
        return OpenedBody(light, dropped, digest)

    async def _prepare(self, task: PrepareBody) -> PreparedBody:
        if self._opened is None:
            raise InvalidRequest("nothing was opened")
        (endpoint, request, opened), self._opened = self._opened, None
        left, _ = signal.getitimer(signal.ITIMER_PROF)
        signal.setitimer(signal.ITIMER_PROF, left + task.cpu)
        if task.seed is not None:
            request = msgspec.structs.replace(request, seed=task.seed)
        engine = engine_of(self._service.models.backends[task.model])
        head = ReplyHead(
            id=task.id, model=task.name, created=task.created, draw=task.draw, adapter=task.adapter
        )
        lease = HomeLease(opened.tenant, task.deadline)
        notes = begin_notes()
        prepared = await endpoint.prepare(request, engine, head, lease)  # type: ignore[arg-type]
        if task.blamed is not None:
            error = exception_of(task.blamed)
            raise prepared.blame(error) if isinstance(error, InvalidRequest) else error
        return msgspec.structs.replace(_ready(prepared, engine, task), notes=notes)

    async def _handle(self, task: HandleWhole) -> HandledWhole:
        signal.setitimer(signal.ITIMER_PROF, task.cpu)
        _begin_for(task)
        parameters = msgspec.json.decode(task.parameters, type=Parameters)
        scope: Scope = {
            "type": "http",
            "method": task.method,
            "path": task.path,
            "headers": task.headers,
            "query_string": b"",
            "path_params": parameters.path,
            QUERY: parameters.query,
            REQUEST_ID: task.id,
        }
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def never() -> Message:
            await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        endpoint = self._endpoints[task.endpoint]
        await endpoint.handle(scope, with_body(task.body, never), send)
        start, *pieces = sent
        return HandledWhole(
            start["status"], start["headers"], [bytes(each.get("body", b"")) for each in pieces]
        )


def _begin_for(task: OpenBody | HandleWhole) -> None:
    """Notes whose request it is."""
    tenant.set(task.tenant)
    current.set(Caller(None, tenant=task.tenant, background=task.background))


def _ready(prepared: PreparedRequest, engine: EngineInfo, task: PrepareBody) -> PreparedBody:
    """The request as the gateway gets it."""
    for ids in prepared.prompt_token_ids:
        check_prompt(ids, engine.welcome)
    basis = None
    if task.basis is not None:
        basis = AnswerBasis(
            prepared.prompt_token_ids,
            prepared.params,
            prepared.media,
            task.basis,
            prepared.reading,
        ).digest()
    params = _different(prepared.params)
    places = {id(each): place for place, each in enumerate(params)}
    limits, tokenizer = engine.welcome.limits, engine.text.tokenizer
    try:
        ready = [ready_params(each, tokenizer, limits) for each in params]
    except InvalidRequest as error:
        raise prepared.blame(error) from None
    spec, is_json = encoded_spec(prepared.reply)
    media = prepared.media
    return PreparedBody(
        [array("i", ids).tobytes() for ids in prepared.prompt_token_ids],
        params if task.whole else [without_ready(each) for each in params],
        ready,
        [places[id(each)] for each in prepared.params],
        spec,
        is_json,
        prepared.search is not None,
        None if media is None else media.media,
        0 if media is None else media.in_front,
        array("i", prepared.prediction).tobytes(),
        prepared.reading,
        basis,
        _blames(prepared),
    )


def _different(params: Sequence[SamplingParams]) -> list[SamplingParams]:
    return list({id(each): each for each in params}.values())


_REASON = "\N{REPLACEMENT CHARACTER}"


def _blames(prepared: PreparedRequest) -> InvalidRequestName | None:
    """The words for an engine core's error about the answers' structure; None: its own."""
    if all(each.structured_outputs is None for each in prepared.params):
        return None
    blamed = prepared.blame(InvalidRequest(f"{PARAM}: {_REASON}", param=PARAM))
    if blamed.param == PARAM:
        return None
    return InvalidRequestName(blamed.param, blamed.message.partition(_REASON)[0])


def _weighed(task: WeighBody) -> WeighedBody:
    signal.setitimer(signal.ITIMER_PROF, task.cpu)
    fields = msgspec.json.decode(task.body, type=dict[str, msgspec.Raw])
    if not fields:
        return WeighedBody("", 0)
    largest = max(fields, key=lambda name: len(fields[name]))
    return WeighedBody(largest[:100], len(fields[largest]))
