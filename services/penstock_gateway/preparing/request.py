"""A generating request whose body is opened and prepared by a preparer, as the gateway sees it."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

import msgspec

from penstock.client.turn_budget import TurnBudget
from penstock.errors import InvalidRequest
from penstock.media.item_names import PromptMedia
from penstock.process import logs
from penstock.request.structured_outputs import PARAM
from penstock_gateway.generate.job import Blame, PreparedRequest, unchanged
from penstock_gateway.generate.search import search_of
from penstock_gateway.http.body_room import HeldBody
from penstock_gateway.http.notes import note
from penstock_gateway.keys.ring import current
from penstock_gateway.preparing.answers import Home
from penstock_gateway.preparing.error_data import data_of
from penstock_gateway.preparing.exchange import BodyExchange
from penstock_gateway.preparing.wire import (
    InvalidRequestName,
    OpenBody,
    OpenedBody,
    PrepareBody,
    PreparedBody,
    decoded_spec,
)
from penstock_gateway.request.fields import RequestFields

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.media.budget import MediaLease
    from penstock_gateway.generate.reply import ReplyHead
    from penstock_gateway.generate.reply_spec import ReplySpec
    from penstock_gateway.models.backend import AskedModel
    from penstock_gateway.request.fields import GenerateFields
    from penstock_gateway.service import Service

Fields = TypeVar("Fields", bound=RequestFields)
Made = TypeVar("Made", bound=RequestFields, covariant=True)

log = logs.get(__name__)

TOKENS_PER_SECOND = 100_000
"""Tokens of a model's context for which a body may take another second of processor time."""


class BodyEndpoint(Protocol[Made]):
    """The endpoint that a body is for."""

    @property
    def place(self) -> int:
        """The endpoint's number in the preparers' list."""

    @property
    def reply_spec(self) -> type[ReplySpec]:
        """The type of what its prepared requests say of their replies."""

    def decoded_light(self, written: bytes) -> Made:
        """A request whose large fields were left out."""


class RemoteBody(Generic[Fields]):
    """Use it as an async context manager, around all work for the request; open it first."""

    light: Fields
    """The request without its large fields."""
    dropped: frozenset[str]
    """Names of these."""
    digest: bytes | None
    """`digest_of_body`'s, if it was wanted."""

    def __init__(
        self,
        service: Service,
        endpoint: BodyEndpoint[Fields],
        body: bytes,
        headers: list[tuple[bytes, bytes]],
        *,
        tenant: str,
        digested: bool,
        held: HeldBody | None = None,
    ) -> None:
        """tenant: whose it is.  digested: the body's digest is wanted.  held: its share of the
        gateway's memory."""
        self._held = held
        self._service = service
        self._endpoint = endpoint
        self._exchange = BodyExchange(service, tenant, body)
        self._open: OpenBody | None = OpenBody(
            endpoint.place,
            body,
            headers,
            tenant,
            background=current.get().background,
            digested=digested,
            cpu=self._exchange.most,
        )
        self.whole = False
        """Whether the prepared request is to have its sampling parameters as they are."""

    def forget(self) -> None:
        """Lets go of the body: an engine core has taken the request."""
        self._open = None
        self._exchange.forget()
        if self._held is not None:
            self._held.leave()

    async def __aenter__(self) -> RemoteBody[Fields]:
        return self

    async def open(self) -> None:
        """Has the body decoded and checked. Raises the body's errors."""
        opened = await self._exchange.bravely(self._opened)
        self.light = self._endpoint.decoded_light(opened.light)
        self.dropped = frozenset(opened.dropped)
        self.digest = opened.digest

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._exchange.leave()

    async def prepared(
        self,
        request: Fields,
        asked: AskedModel,
        head: ReplyHead,
        lease: MediaLease,
        *,
        seed: int | None,
        basis: str | None,
    ) -> PreparedRequest:
        """The request, prepared for this model. request: `light`.  seed, basis: see PrepareBody.
        Raises the request's errors."""
        task = PrepareBody(
            self._service.models.backends.index(asked.backend),
            head.id,
            head.model,
            head.created,
            head.draw,
            head.adapter,
            lease.deadline,
            seed,
            basis,
            self.whole,
            cpu=asked.engine.welcome.limits.max_model_len / TOKENS_PER_SECOND,
        )
        home = Home(self._service, lease.tenant, asked)
        home.leases[0] = lease
        ready = await self._exchange.bravely(lambda: self._ready(task, home))

        async def blame_again(error: InvalidRequest) -> InvalidRequest | None:
            if error.param != PARAM or self._open is None:
                return None
            blamed = msgspec.structs.replace(task, blamed=data_of(error))
            return await self._blamed(blamed, home)

        media = None
        if ready.media is not None:
            media = PromptMedia(ready.media, home.items, ready.in_front)
        turns, prompt_token_ids = TurnBudget(), []
        for each in ready.prompt_token_ids:
            await turns.take()
            prompt_token_ids.append(_ids(each))
        return PreparedRequest(
            prompt_token_ids,
            [ready.params[place] for place in ready.which],
            decoded_spec(ready.reply, self._endpoint.reply_spec, is_json=ready.reply_is_json),
            blame=_blame(ready.blames),
            search=search_of(cast("GenerateFields", request)) if ready.searches else None,
            media=media,
            prediction=_ids(ready.prediction),
            reading=ready.reading,
            ready=[ready.ready[place] for place in ready.which],
            basis=ready.basis,
            blame_again=blame_again,
        )

    async def _opened(self) -> OpenedBody:
        if self._open is None:
            raise RuntimeError("a body that was forgotten is wanted")
        reply = await self._exchange.ask(self._open, self._exchange.most)
        if not isinstance(reply, OpenedBody):
            raise RuntimeError(f"a preparer opens a body with {type(reply).__name__}")
        return reply

    async def _ready(self, task: PrepareBody, home: Home) -> PreparedBody:
        if not self._exchange.is_held:
            await self._opened()
        reply = await self._exchange.ask(task, self._exchange.most + task.cpu, home)
        if not isinstance(reply, PreparedBody):
            raise RuntimeError(f"a preparer prepares a request with {type(reply).__name__}")
        for text in reply.notes:
            note(text)
        self._exchange.let_go()
        return reply

    async def _blamed(self, task: PrepareBody, home: Home) -> InvalidRequest | None:
        """The error of the task in the words of the request; None where that can't be had."""
        try:
            await self._ready(task, home)
        except InvalidRequest as error:
            return error
        except Exception:
            log.warning("an error has no words of the request's API", exception=True)
        return None


def _ids(packed: bytes) -> list[int]:
    return array("i", packed).tolist()


def _blame(name: InvalidRequestName | None) -> Blame:
    """Says an error about `structured_outputs` in the request's words, as far as these are known
    beforehand."""
    if name is None:
        return unchanged
    param, before = name.param, name.before

    def blame(error: InvalidRequest) -> InvalidRequest:
        if error.param != PARAM:
            return error
        message = before + error.message.removeprefix(f"{PARAM}: ")
        return InvalidRequest(message, param=param, code=error.code)

    return blame
