"""A line for each request that was answered, gathered as the request goes on.

Its layer is the outermost one: it sees the status that the client gets, whichever layer set it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.client.observer import RequestObserver
from penstock.process import logs
from penstock_gateway.http.operations import Operation
from penstock_gateway.http.scope_keys import CALL, REQUEST_ID
from penstock_gateway.http.sockets import status_of
from penstock_gateway.keys.ring import CALLER

if TYPE_CHECKING:
    from penstock.client.observer import ObservedRequest

CLIENT_GONE = 499
"""nginx's status for a client that left before it had an answer."""


class AccessRecord:
    """One HTTP request, or one WebSocket. Seconds are since `begun`."""

    __slots__ = (
        "begun",
        "cached_tokens",
        "first_token",
        "model",
        "output_tokens",
        "prompt_tokens",
        "prompts",
        "status",
    )

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.status = CLIENT_GONE
        self.model: str | None = None
        """Name of the model that the prompts were for."""
        self.prompts = 0
        """Prompts that went to the engine."""
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.first_token: float | None = None

    def fields(self) -> dict[str, Any]:
        """Tokens and times, for the line; tokens of what went to the engine only."""
        found: dict[str, Any] = {"seconds": time.perf_counter() - self.begun}
        if self.first_token is not None:
            found["first_token_seconds"] = self.first_token
        if self.prompts:
            found["prompt_tokens"] = self.prompt_tokens
            found["cached_tokens"] = self.cached_tokens
            found["output_tokens"] = self.output_tokens
        return found


current: ContextVar[AccessRecord | None] = ContextVar("access_record", default=None)
"""Record of the request that is being handled; None where no line is written for it."""


class AccessObserver:
    """Hears of the requests that get a line. served: the model's name."""

    def __init__(self, served: Callable[[], str | None]) -> None:
        self._served = served

    def request(self, prompt_tokens: int) -> RequestObserver | None:
        record = current.get()
        if record is None:
            return None
        record.model = self._served()
        return _PromptObserver(record)


class _PromptObserver(RequestObserver):
    def __init__(self, record: AccessRecord) -> None:
        self._record = record

    def submitted(self, request: ObservedRequest) -> None:
        self._record.prompts += 1
        self._record.prompt_tokens += request.prompt_tokens

    def first_token(self, request: ObservedRequest) -> None:
        record = self._record
        if record.first_token is None and request.first_token is not None:
            record.first_token = request.first_token - record.begun

    def ended(self, request: ObservedRequest) -> None:
        self._record.output_tokens += request.generated_tokens
        self._record.cached_tokens += request.cached_tokens or 0


LOGGER = "penstock_gateway.access"
HEALTH = ("/health", "/ping")
MAX_PATH = 200
"""Characters of a path that are shown."""


class AccessLog:
    """ASGI middleware. A line is written for each operation that counts against a key, and for each
    error, but for health checks: they and scrapes would drown the others; and for each WebSocket,
    when it is closed."""

    def __init__(self, app: ASGIApp, *, operations: Iterable[Operation]) -> None:
        self._app = app
        self._counted = frozenset((o.method, o.path) for o in operations if o.counted)
        self._log = logs.get(LOGGER)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        record = AccessRecord()

        async def noting(message: Message) -> None:
            status = status_of(message)
            if status is not None:
                record.status = status
            await send(message)

        token = current.set(record)
        try:
            await self._app(scope, receive, noting)
        finally:
            current.reset(token)
            if self._shows(scope, record.status):
                self._write(scope, record)

    def _shows(self, scope: Scope, status: int) -> bool:
        if scope["type"] == "websocket" or (scope["method"], scope["path"]) in self._counted:
            return True
        return status >= 400 and not scope["path"].startswith(HEALTH)

    def _write(self, scope: Scope, record: AccessRecord) -> None:
        caller, client = scope.get(CALLER), scope.get("client")
        who = {} if caller is None or caller.key is None else {"key": caller.key.name}
        call = {"call": scope[CALL]} if CALL in scope else {}
        model = {"model": record.model} if record.prompts else {}
        self._log.info(
            "request",
            method=scope.get("method", "GET"),
            path=scope["path"][:MAX_PATH],
            status=record.status,
            **call,
            **who,
            **model,
            **record.fields(),
            client=client[0] if client else "",
            request=scope.get(REQUEST_ID, ""),
        )


def setup(process_name: str, form: str) -> None:
    """Sends the lines to stderr, whatever --log-level says. form: text or json."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        logs.formatter(process_name, "json" if form == "json" else "auto", handler.stream)
    )
    logger = logging.getLogger(LOGGER)
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
