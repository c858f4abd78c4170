"""What endpoints that ask the tokenizer only have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.media.budget import MediaLease
from penstock_gateway.http.events import while_connected
from penstock_gateway.http.replies import send_json
from penstock_gateway.models.backend import EngineInfo
from penstock_gateway.request.endpoint import JsonEndpoint
from penstock_gateway.request.fields import terms_headers


class NamesModel(Protocol):
    """A body that may say for which model it is."""

    @property
    def model(self) -> str | None: ...


Request = TypeVar("Request", bound=NamesModel)
SOME = 1024
"""Tokens whose texts are looked up at once."""


class TextEndpoint(JsonEndpoint[Request], Generic[Request]):
    """Asks the tokenizer only."""

    answers_while_leaving = True
    runs_elsewhere = True

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await self.read(scope, receive)
        tenant = terms_headers(scope).tenant
        payload = await while_connected(self._answer(request, tenant), receive)
        await send_json(send, 200, payload)

    async def _answer(self, request: Request, tenant: str) -> bytes | list[bytes]:
        async with self._service.models.using(request.model) as asked:
            with self._service.media.lease(tenant) as lease:
                return await self.reply(request, asked.engine, lease)

    async def reply(
        self, request: Request, engine: EngineInfo, lease: MediaLease
    ) -> bytes | list[bytes]:
        """The reply as JSON, or its pieces. Raises InvalidRequest."""
        return msgspec.json.encode(await self.answer(request, engine, lease))

    @abstractmethod
    async def answer(self, request: Request, engine: EngineInfo, lease: MediaLease) -> Any:
        """What msgspec writes as the reply. Raises InvalidRequest."""
