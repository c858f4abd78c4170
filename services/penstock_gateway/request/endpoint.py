"""What every endpoint that takes a JSON body has in common."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec
from starlette.types import Message, Receive, Scope, Send

from penstock.errors import InvalidRequest
from penstock_gateway.http.errors import leaving
from penstock_gateway.preparing.cost import is_small
from penstock_gateway.request.body import (
    check_amount,
    check_amount_now,
    check_json_type,
    read_body,
)
from penstock_gateway.request.decoding import ShortFields, decode, decode_fields, decode_large
from penstock_gateway.request.fields import tenant_of
from penstock_gateway.request.skipped_fields import FIELDS, say_skipped
from penstock_gateway.request.skipping import skipping
from penstock_gateway.service import Service


def with_body(body: bytes, receive: Receive) -> Receive:
    """Gives the body that was read, then what follows."""
    bodies = iter([body])

    async def receive_again() -> Message:
        for each in bodies:
            return {"type": "http.request", "body": each, "more_body": False}
        return await receive()

    return receive_again


Body = TypeVar("Body")


Headers = Sequence[tuple[bytes, bytes]]
"""Names, in lower case, and values."""


LARGE = 262_144
"""Bytes of a body from which on decoding it is a turn by itself."""


SMALL = 2**20
"""Bytes of the largest body that holds no texts."""


class JsonEndpoint(ABC, Generic[Body]):
    """An ASGI application for one path. A plain one: it watches the connection while it works, and
    may hold response headers back, which a handler that returns a response can't."""

    request_type: type[Body]
    """The struct of its bodies."""
    takes_long_bodies = True
    """Whether a body may hold texts for the model; of names and settings, SMALL is enough."""
    takes_forms_type = False
    """Whether JSON may call itself application/x-www-form-urlencoded, as curl -d does."""
    ignores_unknown = False
    """Whether unknown fields are skipped, as by the API's maker; the log names each once."""
    answers_while_leaving = False
    """Whether requests that come after the gateway was asked to leave are answered, too."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.place = service.preparers.register(self)
        """The endpoint's number in the preparers' list."""
        kind = self.request_type
        if service.config.unknown_fields == "ignore":
            kind = skipping(kind)
        self._short = ShortFields(kind)
        self._decoder: msgspec.json.Decoder[Body] = msgspec.json.Decoder(kind)
        self._skipping: msgspec.json.Decoder[Body] | None = None
        if self.ignores_unknown:
            self._skipping = msgspec.json.Decoder(skipping(kind))

    runs_elsewhere = False
    """Whether a preparer answers the whole request where its body is large: what it asks of engine
    cores and of the disk is asked here."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.runs_elsewhere:
            await self.handle(scope, receive, send)
            return
        body = await self.body(scope, receive)
        if is_small(body):
            await self.handle(scope, with_body(body, receive), send)
        else:
            await self._service.preparers.answer(self, scope, body, receive, send)

    @abstractmethod
    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""

    def understood(self, body: bytes, headers: Headers) -> Body:
        """The body as a struct. headers: of the HTTP request. Raises InvalidRequest."""
        check_amount_now(body)
        if len(body) > LARGE:
            self._short.check(body)
        return self._decoded(body)

    def _decoded(self, body: bytes) -> Body:
        try:
            return decode(body, self._decoder)
        except InvalidRequest as error:
            if self._skipping is None or error.code != "unknown_parameter":
                raise
            # What is skipped has to be JSON, too.
            fields = decode_fields(body, FIELDS)
            say_skipped(type(self).__name__, fields, self.request_type, error.param)
        return decode(body, self._skipping)

    async def body(self, scope: Scope, receive: Receive) -> bytes:
        """The request's body. Raises ClientGone, and HTTPError: 400, 408, 413, 415, or 503 where
        the gateway is leaving."""
        service = self._service
        check_json_type(scope, forms_too=self.takes_forms_type)
        most = service.config.max_body_bytes
        limit = most if self.takes_long_bodies else min(most, SMALL)
        body = await read_body(
            scope,
            receive,
            limit=limit,
            timeout=service.patience.body,
            room=service.bodies,
            tenant=tenant_of(scope),
        )
        if service.draining and not self.answers_while_leaving:
            raise leaving()
        return body

    async def read(self, scope: Scope, receive: Receive) -> Body:
        """The body as a struct, decoded in turns. Raises InvalidRequest, and what `body` raises."""
        body = await self.body(scope, receive)
        await check_amount(body)
        if len(body) <= LARGE:
            return self._decoded(body)
        self._short.check(body)
        await asyncio.sleep(0)  # Decoding is a turn of its own.
        request = await decode_large(body, self._decoder, self._decoded)
        await asyncio.sleep(0)  # So is what comes next.
        return request
