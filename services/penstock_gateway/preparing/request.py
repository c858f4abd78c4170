"""A request whose body is opened and prepared by a preparer, as the gateway sees it."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Generic, TypeVar, cast

import msgspec

from penstock.errors import InvalidRequest, Overloaded
from penstock.media.items import PromptMedia
from penstock.process import logs
from penstock.process.isolated import STANDSTILL, Crashed, Died, Frozen, Stalled
from penstock.request.structured_outputs import PARAM
from penstock_gateway.generate.job import Blame, Prepared, unchanged
from penstock_gateway.generate.search import search_of
from penstock_gateway.http.errors import clip
from penstock_gateway.keys.ring import current
from penstock_gateway.preparing.answers import ANSWERS, Home
from penstock_gateway.preparing.error_data import data_of, exception_of, internal_error
from penstock_gateway.preparing.wire import (
    Ask,
    Failed,
    InvalidRequestName,
    Open,
    Opened,
    Prepare,
    Ready,
    Told,
    ToPreparer,
    Weigh,
    Weighed,
    decoded_spec,
)
from penstock_gateway.request.fields import RequestFields

if TYPE_CHECKING:
    from types import TracebackType

    from penstock.media.desk import MediaLease
    from penstock_gateway.generate.endpoint import GenerateEndpoint
    from penstock_gateway.generate.reply import ReplyHead
    from penstock_gateway.models.backend import AskedModel
    from penstock_gateway.preparing.process import PreparerProcess
    from penstock_gateway.request.fields import GenerateFields
    from penstock_gateway.service import Service

Fields = TypeVar("Fields", bound=RequestFields)
Outcome = TypeVar("Outcome")

log = logs.get(__name__)

ATTEMPTS = 3
"""Preparers that a body gets when they die under it, for no fault of its own."""
TOKENS_PER_SECOND = 100_000
"""Tokens of a model's context for which a body may take another second of processor time."""


class RemoteBody(Generic[Fields]):
    """Use it as an async context manager, around all work for the request."""

    light: Fields
    """The request without its large fields."""
    digest: bytes | None
    """`digest_of_body`'s, if it was wanted."""

    def __init__(
        self,
        service: Service,
        endpoint: GenerateEndpoint[Fields],
        body: bytes,
        headers: list[tuple[bytes, bytes]],
        *,
        tenant: str,
        digested: bool,
    ) -> None:
        """tenant: whose it is.  digested: the body's digest is wanted."""
        self._service = service
        self._preparers = service.preparers
        self._endpoint = endpoint
        self._turn = service.preparers.turn(tenant)
        self._most = service.config.max_body_seconds
        self._open: Open | None = Open(
            endpoint.place,
            body,
            headers,
            tenant,
            background=current.get().background,
            digested=digested,
            cpu=self._most,
        )
        self.whole = False
        """Whether the prepared request is to have its sampling parameters as they are."""
        self._process: PreparerProcess | None = None
        self._is_open = False

    def forget(self) -> None:
        """Lets go of the body: an engine core has taken the request."""
        self._open = None

    async def __aenter__(self) -> RemoteBody[Fields]:
        """Opens the body. Raises what is wrong with it."""
        opened = await self._bravely(self._opened)
        self.light = self._endpoint.decoded_light(opened.light)
        self.digest = opened.digest
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._turn.leave()
        self._let_go()

    async def prepared(
        self,
        request: Fields,
        asked: AskedModel,
        head: ReplyHead,
        lease: MediaLease,
        *,
        basis: str | None,
    ) -> Prepared:
        """The request, prepared for this model. request: `light`, with what was fixed of it.
        basis: see Prepare.  Raises what is wrong with it."""
        task = Prepare(
            self._service.models.backends.index(asked.backend),
            head.id,
            head.model,
            head.created,
            head.draw,
            head.adapter,
            lease.deadline,
            getattr(request, "seed", None),
            basis,
            self.whole,
            cpu=asked.engine.welcome.limits.max_model_len / TOKENS_PER_SECOND,
        )
        home = Home(self._service, lease, asked.engine.welcome.media)
        ready = await self._bravely(lambda: self._ready(task, home))

        async def blame_again(error: InvalidRequest) -> InvalidRequest | None:
            if error.param != PARAM or self._open is None:
                return None
            blamed = msgspec.structs.replace(task, blamed=data_of(error))
            return await self._blamed(blamed, home)

        return Prepared(
            [_ids(each) for each in ready.prompt_token_ids],
            [ready.params[place] for place in ready.which],
            decoded_spec(ready.reply, self._endpoint.reply_spec, is_json=ready.reply_is_json),
            blame=_blame(ready.blames),
            search=search_of(cast("GenerateFields", request)) if ready.searches else None,
            media=None
            if ready.media is None
            else PromptMedia(ready.media, home.items, ready.in_front),
            prediction=_ids(ready.prediction),
            reading=ready.reading,
            ready=[ready.ready[place] for place in ready.which],
            basis=ready.basis,
            blame_again=blame_again,
        )

    async def _opened(self) -> Opened:
        if self._open is None:
            raise RuntimeError("a body that was forgotten is wanted")
        told = await self._ask(self._open, self._most)
        if not isinstance(told, Opened):
            raise RuntimeError(f"a preparer opens a body with {type(told).__name__}")
        self._is_open = True
        return told

    async def _ready(self, task: Prepare, home: Home) -> Ready:
        if not self._is_open:
            await self._opened()
        self._is_open = False
        told = await self._ask(task, self._most + task.cpu, home)
        if not isinstance(told, Ready):
            raise RuntimeError(f"a preparer prepares a request with {type(told).__name__}")
        self._let_go()
        return told

    async def _blamed(self, task: Prepare, home: Home) -> InvalidRequest | None:
        """The error of the task in the words of the request; None where that can't be had."""
        try:
            await self._ready(task, home)
        except InvalidRequest as error:
            return error
        except Exception:
            log.warning("an error can't be told in a request's own words", exception=True)
        return None

    async def _bravely(self, work: Callable[[], Awaitable[Outcome]]) -> Outcome:
        """What the work returns; it is done again where its process dies for no fault of its own.
        Raises what the body's faults are."""
        for _ in range(ATTEMPTS):
            try:
                return await work()
            except Died as error:
                self._drop()
                log.warning("a process that prepared a request has died", reason=str(error))
            except Frozen:
                self._drop()
                log.error("a preparer stood still and was replaced", seconds=STANDSTILL)
                raise Overloaded(
                    "the process that prepared the request stood still, and was replaced",
                    retry_after=1.0,
                ) from None
            except Stalled:
                self._drop()
                raise await self._too_dear() from None
            except Crashed:
                self._drop()
                raise await self._refused("brought the process down that prepared it") from None
            except BaseException:
                self._turn.leave()
                raise
        log.error("preparers die", attempts=ATTEMPTS)
        raise Overloaded(
            "the process that prepared the request died, and so did the next ones", retry_after=1.0
        )

    async def _too_dear(self) -> InvalidRequest:
        log.warning("a body took too long to prepare, and its process was ended", most=self._most)
        return await self._refused(
            f"takes more than {self._most:g} s of a processor to prepare (--max-body-seconds)"
        )

    async def _refused(self, why: str) -> InvalidRequest:
        field, size = await self._largest()
        where = f"; its largest field is {clip(field)}, with {size} bytes" if field else ""
        return InvalidRequest(
            f"the request {why}{where}", param=field or None, code="request_too_large"
        )

    async def _largest(self) -> tuple[str, int]:
        """The name and the bytes of the body's largest field; none where that can't be told."""
        if self._open is None:
            return "", 0
        try:
            told = await self._ask(Weigh(self._open.body, self._most), self._most)
            self._let_go()
        except Exception:
            self._drop()
            return "", 0
        return (told.field, told.bytes) if isinstance(told, Weighed) else ("", 0)

    async def _ask(
        self, message: ToPreparer, cpu: float, home: Home | None = None
    ) -> Opened | Ready | Weighed:
        """In the tenant's turn. Raises what the preparer's answer is, if it failed."""

        async def answer(ask: Ask) -> Told:
            # What it waits for is nobody's turn.
            self._turn.leave()
            try:
                return await _answered(ask, home)
            finally:
                await self._turn.enter()

        await self._turn.enter()
        if self._process is None:
            self._process = await self._preparers.take()
        told = await self._process.ask(message, cpu, answer)
        self._turn.leave()
        if isinstance(told, Failed):
            self._let_go()
            raise exception_of(told.error)
        return told

    def _let_go(self) -> None:
        """Gives the process back."""
        process, self._process, self._is_open = self._process, None, False
        if process is not None:
            if process.is_busy:
                self._preparers.drop(process)
            else:
                self._preparers.give_back(process)

    def _drop(self) -> None:
        self._turn.leave()
        process, self._process, self._is_open = self._process, None, False
        if process is not None:
            self._preparers.drop(process)


async def _answered(ask: Ask, home: Home | None) -> Told:
    """An error is an answer, too."""
    try:
        if home is None:
            raise RuntimeError("a preparer asks before it may")
        return Told(ask.number, await ANSWERS[ask.what](home, ask.payload))
    except Exception as error:
        data = data_of(error)
        if data is None:
            log.error("a preparer's question can't be answered", exception=True)
            data = data_of(internal_error())
        return Told(ask.number, error=data)


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
