"""What every endpoint that takes a JSON body has in common."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from penstock_gateway.http.errors import leaving
from penstock_gateway.request.amount import check_amount
from penstock_gateway.request.body import check_json_type, read_body
from penstock_gateway.request.decoding import ShortFields, decode
from penstock_gateway.request.unknown_fields import skipping
from penstock_gateway.service import Service

Body = TypeVar("Body")

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
    answers_while_leaving = False
    """Whether requests that come after the gateway was told to leave are answered, too."""

    def __init__(self, service: Service) -> None:
        self._service = service
        kind = self.request_type
        if service.config.unknown_fields == "ignore":
            kind = skipping(kind)
        self._short = ShortFields(kind)
        self._decoder: msgspec.json.Decoder[Body] = msgspec.json.Decoder(kind)

    @abstractmethod
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""

    async def read(self, scope: Scope, receive: Receive) -> Body:
        """The request's body. Raises InvalidRequest, ClientGone, and HTTPError: 400, 408, 413, 415,
        or 503 where the gateway is leaving."""
        service = self._service
        check_json_type(scope, forms_too=self.takes_forms_type)
        most = service.config.max_body_bytes
        limit = most if self.takes_long_bodies else min(most, SMALL)
        body = await read_body(scope, receive, limit=limit, timeout=service.patience.body)
        if service.draining and not self.answers_while_leaving:
            raise leaving()
        await check_amount(body)
        if len(body) > LARGE:
            self._short.check(body)
            await asyncio.sleep(0)
        request = decode(body, self._decoder)
        if len(body) > LARGE:
            await asyncio.sleep(0)  # What comes next has a turn of its own.
        return request
