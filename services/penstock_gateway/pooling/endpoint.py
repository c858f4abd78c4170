"""The course of a pooling endpoint: body -> struct -> inputs -> Submits -> vectors -> reply."""

from __future__ import annotations

import asyncio
import time
import uuid
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.client.computing import fingerprint_of_parts
from penstock.client.late_interaction import Role
from penstock.client.pool_request import check_input, pooling_model
from penstock.client.pooling_inputs import (
    PoolInput,
    Side,
    check_pictures,
    ids_input,
    limit_of,
    picture_input,
    refuse_cut,
    text_input,
)
from penstock.client.turn_budget import TurnBudget
from penstock.errors import InvalidRequest
from penstock.media.budget import MediaLease
from penstock.media.desk import MediaDesk
from penstock.media.sources import MediaSource
from penstock.model.media_facts import MediaFacts
from penstock.protocol.common import Pooling
from penstock.request.terms import Terms
from penstock_gateway.chat.messages import Message
from penstock_gateway.chat.prompt import (
    ChatMedia,
    chat_prompt,
    check_variables,
    refuse_template,
)
from penstock_gateway.generate.chunked_reply import Pace, Splices
from penstock_gateway.generate.reply import encoder
from penstock_gateway.http.events import while_connected
from penstock_gateway.http.replies import send_json, send_whole
from penstock_gateway.http.scope_keys import REQUEST_ID
from penstock_gateway.models.backend import AskedModel
from penstock_gateway.pooling.fields import (
    Given,
    InputField,
    PoolFields,
    PoolUsage,
    VectorFields,
    inputs_of,
)
from penstock_gateway.pooling.messages import PoolMessage, input_of, read_parts
from penstock_gateway.request.endpoint import JsonEndpoint
from penstock_gateway.request.fields import check_request_id, request_terms, terms_headers
from penstock_gateway.request.tokenising import LONG_TEXT, off_the_loop
from penstock_gateway.tracing import trace as tracing

if TYPE_CHECKING:
    from penstock.client.pool_request import PoolResult

Fields = TypeVar("Fields", bound=PoolFields)
Maker = Callable[[MediaLease], Awaitable[PoolInput]]
"""Makes an input, whose media the lease holds."""


class Call:
    """One HTTP request on its way. id, model: as the reply has them."""

    def __init__(
        self,
        desk: MediaDesk,
        asked: AskedModel,
        terms: Terms,
        name: str,
        id: str,
        truncate: int | None,
        *,
        side: Side | None = None,
        lease: MediaLease,
        changes: dict[str, Any] | None = None,
    ) -> None:
        """desk: prepares its media, which lease holds.  changes: its own mm_processor_kwargs.
        side: where its inputs are cut."""
        engine = asked.engine
        self.engine = engine
        self.id = id
        self.model = asked.name
        self.created = int(time.time())
        self.limit = limit_of(truncate, engine.welcome)
        self.side = side
        self._desk = desk
        self._client = asked.client
        self._terms = terms
        self._name = name
        self._lease = lease
        self._changes = changes
        self._number = 0
        self.splices = Splices()
        """What of its reply is written in pieces."""

    def may_cut(self) -> None:
        """Lets texts that are too long lose their end, of a model whose prompt can be cut, unless
        the request says itself how long they may be."""
        if self.limit is None and pooling_model(self.engine.welcome).template is None:
            self.limit = self.engine.welcome.limits.max_model_len

    async def read_message(
        self, given: str | MediaSource, *, add_special: bool = True
    ) -> list[PoolInput]:
        """What messages hold. Raises InvalidRequest, and what preparing media raises."""
        facts = check_pictures(self.engine.welcome)
        if isinstance(given, str):
            return await self.read([given], add_special=add_special)
        return [await self._picture(facts, given)]

    async def read_chat(
        self,
        messages: list[PoolMessage],
        *,
        add_generation_prompt: bool | None,
        continue_final_message: bool | None = None,
        add_special: bool | None = None,
        variables: dict[str, Any] | None = None,
        lease: MediaLease | None = None,
    ) -> PoolInput:
        """A conversation in the model's own format, with its media. variables: more for the
        template.  lease: holds the media, in place of the request's.  Raises InvalidRequest, and
        what preparing media raises."""
        refuse_cut(self.limit)
        made = await chat_prompt(
            self.engine,
            msgspec.convert(msgspec.to_builtins(messages), list[Message]),
            add_generation_prompt=bool(add_generation_prompt),
            continue_final_message=continue_final_message,
            add_special_tokens=add_special,
            variables=variables or {},
            with_media=ChatMedia(self._desk, lease or self._lease, self._changes),
        )
        check_input(made.prompt_token_ids, self.engine.welcome, cut=False)
        return PoolInput(made.prompt_token_ids, media=made.media)

    async def read_each(self, given: Sequence[str | MediaSource]) -> list[PoolInput]:
        """Texts and pictures, in order. Raises as `read_message`."""
        texts = iter(await self.read([each for each in given if isinstance(each, str)]))
        return [
            next(texts)
            if isinstance(each, str)
            else await self._picture(check_pictures(self.engine.welcome), each)
            for each in given
        ]

    async def _picture(self, facts: MediaFacts, source: MediaSource) -> PoolInput:
        items = await self._desk.prepare(facts, [source], self._lease, self._changes)
        if items is None:
            raise InvalidRequest(f"{source.where} contains no image", param=source.where)
        return picture_input(items)

    async def read(
        self, given: list[Given], *, add_special: bool = True, role: Role = "document"
    ) -> list[PoolInput]:
        """Token ids of inputs. Raises InvalidRequest."""
        welcome, tokenizer = self.engine.welcome, self.engine.text.tokenizer

        def one(each: Given) -> PoolInput:
            if not isinstance(each, str):
                return ids_input(each, welcome, limit=self.limit, side=self.side)
            return text_input(
                each,
                None,
                tokenizer,
                welcome,
                limit=self.limit,
                side=self.side,
                add_special=add_special,
                role=role,
            )

        size = sum(len(each) for each in given if isinstance(each, str))
        return await _made([partial(one, each) for each in given], size)

    async def read_pairs(
        self, pairs: list[tuple[str, str]], instruction: str | None
    ) -> list[PoolInput]:
        """Token ids of texts that belong together. Raises InvalidRequest."""
        welcome, tokenizer = self.engine.welcome, self.engine.text.tokenizer

        def one(first: str, second: str) -> PoolInput:
            return text_input(
                first,
                second,
                tokenizer,
                welcome,
                limit=self.limit,
                side=self.side,
                instruction=instruction,
            )

        size = sum(len(one) + len(two) for one, two in pairs)
        return await _made([partial(one, *pair) for pair in pairs], size)

    async def pool(self, inputs: list[PoolInput], asked: Pooling) -> list[PoolResult]:
        """One result for each input, in order. What one fails with ends the others."""
        if len(inputs) == 1:
            self._number += 1
            return [await self._pooled(self._name, inputs[0], asked)]
        return await self._together(
            [partial(self._pooled, given=given, asked=asked) for given in inputs]
        )

    async def pool_made(self, makers: Sequence[Maker], asked: Pooling) -> list[PoolResult]:
        """Makes inputs when there is room for each, and pools them as `pool` does. Media are held
        so long alone: a hundred documents have more media together than a request may hold. Raises
        what a maker raises, too."""

        async def one(name: str, make: Maker) -> PoolResult:
            with self._desk.lease(self._terms.tenant, self._terms.deadline) as lease:
                return await self._pooled(name, await make(lease), asked)

        return await self._together([partial(one, make=make) for make in makers])

    async def _together(
        self, works: Sequence[Callable[[str], Awaitable[PoolResult]]]
    ) -> list[PoolResult]:
        """Results of all, in order, each under a name of its own and computed alike, as what the
        request makes after them is. No more are under way at once than keep the steps full, so that
        a long list finds room."""
        if len(works) > 1 and self._terms.fingerprint is None:
            held = await fingerprint_of_parts(self._client, [], self._terms)
            self._terms = msgspec.structs.replace(self._terms, fingerprint=held)
        limits = self.engine.welcome.limits
        window = asyncio.Semaphore(
            max(1, min(limits.max_waiting_requests, 2 * limits.max_num_seqs))
        )
        budget = TurnBudget()

        async def one(number: int, work: Callable[[str], Awaitable[PoolResult]]) -> PoolResult:
            async with window:
                await budget.take()
                return await work(f"{self._name}-{number}")

        first, self._number = self._number, self._number + len(works)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = []
                for i, work in enumerate(works):
                    await budget.take()
                    tasks.append(group.create_task(one(first + i, work)))
        except* Exception as failures:
            raise _first(failures) from None
        return [task.result() for task in tasks]

    async def _pooled(self, name: str, given: PoolInput, asked: Pooling) -> PoolResult:
        result = await self._client.pool(
            given.prompt_token_ids,
            given.asked(asked),
            name=name,
            terms=self._terms,
            media=given.media,
        )
        return given.result(result)


async def _made(makers: Sequence[Callable[[], PoolInput]], characters: int) -> list[PoolInput]:
    """What each makes of its share of so many characters: in a thread if these are many, else in
    several turns of the loop if the makers are."""
    if characters > LONG_TEXT:
        return await off_the_loop(lambda: [make() for make in makers], characters)
    made, pace = [], Pace()
    for make in makers:
        made.append(make())
        await pace.rest()
    return made


def _first(failures: BaseExceptionGroup[Any]) -> BaseException:
    error: BaseException = failures
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def usage_of(results: Sequence[PoolResult]) -> PoolUsage:
    tokens = sum(result.prompt_tokens for result in results)
    return PoolUsage(tokens, tokens)


async def vector_inputs(
    input: InputField,
    messages: list[PoolMessage] | None,
    call: Call,
    fields: VectorFields,
    role: Role = "document",
) -> list[PoolInput]:
    """Inputs of what a body has: input or messages, but not both. Raises InvalidRequest."""
    add_special, media = fields.add_special_tokens is not False, call.engine.welcome.media
    if messages is None:
        return await call.read(inputs_of(input), add_special=add_special, role=role)
    if input is not None:
        raise InvalidRequest("give either input or messages", param="input")
    if call.engine.text.template is None and (media is None or not media.alone):
        raise InvalidRequest(
            "messages need a chat template, which this model lacks; use input, or start the server "
            "with --chat-template",
            param="messages",
            code="no_chat_template",
        )
    refuse_template(fields.chat_template)
    check_variables(fields.chat_template_kwargs)
    if fields.continue_final_message and fields.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt are both true; allowed: one",
            param="continue_final_message",
        )
    if media is not None and media.alone:
        return await call.read_message(input_of(messages), add_special=add_special)
    if media is None:
        for place, message in enumerate(messages):
            read_parts(message.content, f"messages[{place}].content", [], [])
    one = await call.read_chat(
        messages,
        add_generation_prompt=fields.add_generation_prompt,
        continue_final_message=fields.continue_final_message,
        add_special=fields.add_special_tokens,
        variables=fields.chat_template_kwargs,
    )
    return [one]


class BytesReply(NamedTuple):
    """A reply that isn't JSON. headers: besides its type and length."""

    pieces: list[bytes]
    headers: list[tuple[str, str]]


class PoolEndpoint(JsonEndpoint[Fields], Generic[Fields]):
    """Returns vectors for a posted body."""

    runs_elsewhere = True
    id_prefix: str
    """Prefix of the ids in its replies."""

    @abstractmethod
    async def answer(self, request: Fields, call: Call) -> object:
        """The reply, for msgspec, or bytes. Raises InvalidRequest, and what a request fails
        with."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = time.monotonic()
        headers = terms_headers(scope)
        request = await self.read(scope, receive)
        check_request_id(request)
        terms = request_terms(request, headers, arrived)
        with self._service.answering:
            work = self._answer(request, terms, scope[REQUEST_ID])
            reply = await while_connected(work, receive)
            if isinstance(reply, BytesReply):
                await send_whole(send, 200, reply.pieces, "application/octet-stream", reply.headers)
            else:
                await send_json(send, 200, reply)

    async def _answer(self, request: Fields, terms: Terms, name: str) -> list[bytes] | BytesReply:
        async with self._service.models.using(request.model, terms.deadline) as asked:
            return await self._answer_by(asked, request, terms, name)

    async def _answer_by(
        self, asked: AskedModel, request: Fields, terms: Terms, name: str
    ) -> list[bytes] | BytesReply:
        pooling_model(asked.engine.welcome)
        terms = msgspec.structs.replace(terms, adapter=asked.adapter)
        id = f"{self.id_prefix}-{request.request_id or uuid.uuid4().hex}"
        trace = tracing.current.get()
        if trace is not None:
            trace.asks(asked.name, id)
        cut = request.truncate_prompt_tokens
        with self._service.media.lease(terms.tenant, terms.deadline) as lease:
            changes = request.mm_processor_kwargs
            call = Call(
                self._service.media,
                asked,
                terms,
                name,
                id,
                cut,
                side=request.truncation_side,
                lease=lease,
                changes=changes,
            )
            reply = await self.answer(request, call)
            if isinstance(reply, BytesReply):
                return reply
            return call.splices.spliced(encoder.encode(reply))
