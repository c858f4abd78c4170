"""The ASGI layer that opens a request's span, and always closes it; and what tells the request's
trace what became of its prompts in the engine. What makes traces is loaded only where there are
any."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.client.observer import RequestObserver
from penstock.errors import StartupError
from penstock_gateway.http.operations import Operation
from penstock_gateway.http.scope_keys import REQUEST_ID
from penstock_gateway.http.sockets import status_of
from penstock_gateway.tracing.trace import TRACE, Run, Trace, current

if TYPE_CHECKING:
    from penstock.client.observer import ObservedRequest
    from penstock.config.settings import GatewayConfig
    from penstock_gateway.tracing.tracer import Tracing


class TraceLayer:
    """ASGI middleware, just inside the boundary. operations: those that count against a key's
    requests are traced, and no others: health checks and scrapes would drown them. A WebSocket is
    traced from its handshake until it is closed."""

    def __init__(self, app: ASGIApp, *, tracing: Tracing, operations: Iterable[Operation]) -> None:
        self._app = app
        self._tracing = tracing
        self._traced = {(o.method, o.path): o for o in operations if o.counted}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace = None
        if scope["type"] == "http":
            operation = self._traced.get((scope["method"], scope["path"]))
            if operation is not None:
                trace = self._tracing.begin(scope, scope[REQUEST_ID], operation.traced_as)
        elif scope["type"] == "websocket":
            trace = self._tracing.begin(scope, scope[REQUEST_ID])
        if trace is None:
            await self._app(scope, receive, send)
            return

        async def noting(message: Message) -> None:
            status = status_of(message)
            if status is not None:
                trace.status = status
            await send(message)

        scope[TRACE] = trace
        token = current.set(trace)
        try:
            await self._app(scope, receive, noting)
        except (Exception, asyncio.CancelledError) as error:
            trace.error = error
            raise
        finally:
            current.reset(token)
            trace.end()
            self._tracing.finish(trace)


class TraceObserver:
    """Hears of the requests that are traced."""

    def request(self, prompt_tokens: int) -> RequestObserver | None:
        trace = current.get()
        return None if trace is None else _RunObserver(trace)


class _RunObserver(RequestObserver):
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._run: Run | None = None

    @property
    def timed(self) -> bool:
        return self._trace.follows

    def submitted(self, request: ObservedRequest) -> None:
        self._run = self._trace.run(request.prompt_tokens, request.sequences, request.timing)

    def first_token(self, request: ObservedRequest) -> None:
        if self._run is not None:
            self._run.first_token = request.first_token

    def ended(self, request: ObservedRequest) -> None:
        run = self._run
        if run is None:
            return
        run.tokens, run.cached = request.generated_tokens, request.cached_tokens
        run.reasons |= request.reasons
        for index in range(run.n):
            run.reasons.setdefault(index, request.last_reason or "")

    def keep(self, release: Callable[[], None]) -> bool:
        if self._run is None:
            return False
        self._run.release = release
        return True


def tracing_of(config: GatewayConfig) -> Tracing | None:
    """None unless the configuration names an endpoint. Raises StartupError without the extra."""
    if config.otlp_traces_endpoint is None:
        return None
    try:
        from penstock_gateway.tracing.tracer import Tracing
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("opentelemetry"):
            raise
        raise StartupError(
            "--otlp-traces-endpoint needs OpenTelemetry, which is not installed: "
            "pip install 'penstock-llm[otel]'"
        ) from None
    return Tracing.of(config)
