"""Sampling, context and export, by OpenTelemetry's SDK; loaded only if tracing is on."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagators.textmap import Getter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from penstock.client.timing import LAST_WORD
from penstock.process import logs
from penstock.version import __version__
from penstock_gateway.tracing.attributes import request_attributes, write
from penstock_gateway.tracing.trace import Trace

if TYPE_CHECKING:
    from starlette.types import Scope

    from penstock.config.settings import GatewayConfig


log = logs.get(__name__)

FLUSH_WITHIN = 2.0
"""Seconds that a gateway which leaves gives the collector to take the last spans."""


class _Headers(Getter["Scope"]):
    """Reads a scope's headers. One that comes twice is none, as W3C has it of traceparent."""

    def get(self, carrier: Scope, key: str) -> list[str] | None:
        wanted = key.lower().encode()
        found = [value.decode("latin-1") for name, value in carrier["headers"] if name == wanted]
        if wanted == b"traceparent" and len(found) > 1:
            return None
        return found or None

    def keys(self, carrier: Scope) -> list[str]:
        return [name.decode("latin-1") for name, _ in carrier["headers"]]


class Tracing:
    """One gateway's. Spans wait in a bounded queue for a thread that sends them; what doesn't fit
    is dropped.  OpenTelemetry's own variables say more (OTEL_BSP_*, OTEL_RESOURCE_ATTRIBUTES,
    OTEL_EXPORTER_OTLP_HEADERS, …); no global provider is set."""

    def __init__(self, endpoint: str, ratio: float) -> None:
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(ratio)),
            resource=Resource.create(_resource()),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("penstock.gateway", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._finishing: set[asyncio.Task[None]] = set()

    @classmethod
    def of(cls, config: GatewayConfig) -> Tracing | None:
        """Tracing as the configuration has it; None where there is no endpoint for traces."""
        endpoint = config.otlp_traces_endpoint
        return None if endpoint is None else cls(endpoint, config.trace_sample_ratio)

    def begin(self, scope: Scope, request_id: str, operation: str | None = None) -> Trace | None:
        """A request has arrived; None: it is not sampled. operation: Operation.traced_as."""
        parent = self._propagator.extract(scope, getter=_HEADERS)
        begun, wall = time.perf_counter(), time.time_ns()
        span = self._tracer.start_span(
            f"{scope.get('method', 'GET')} {scope['path']}",
            context=parent,
            kind=SpanKind.SERVER,
            attributes=request_attributes(scope, request_id, operation),
            start_time=wall,
        )
        if not span.is_recording():
            return None
        return Trace(span, format_trace_id(span.get_span_context().trace_id), begun, wall)

    def finish(self, trace: Trace) -> None:
        """Ends the request's trace. Its spans are written when the engine has sent its timing,
        which may come a step after the last text; only this waits for that."""
        if all(timing.complete for timing in trace.timings):
            self._write(trace)
            return
        task = asyncio.get_running_loop().create_task(self._finish(trace))
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    async def close(self) -> None:
        """Sends what is left, for FLUSH_WITHIN seconds at most."""
        if self._finishing:
            await asyncio.wait(self._finishing, timeout=2 * LAST_WORD)
        # A thread of its own, which ends with the process: those of the loop's pool are waited for.
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def flush() -> None:
            self._provider.shutdown()
            try:
                loop.call_soon_threadsafe(done.set)
            except RuntimeError:
                pass  # Nobody waits any more.

        threading.Thread(target=flush, name="flush traces", daemon=True).start()
        try:
            await asyncio.wait_for(done.wait(), FLUSH_WITHIN)
        except TimeoutError:
            log.warning("some traces were not sent", seconds=FLUSH_WITHIN)

    async def _finish(self, trace: Trace) -> None:
        await asyncio.gather(*(timing.wait(LAST_WORD) for timing in trace.timings))
        self._write(trace)

    def _write(self, trace: Trace) -> None:
        trace.release()
        try:
            write(trace, self._tracer)
        except Exception:
            log.error("a trace could not be written", trace_id=trace.trace_id, exception=True)


_HEADERS = _Headers()


def _resource() -> dict[str, str]:
    """What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES don't say."""
    attributes = {
        "service.version": __version__,
        "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
    }
    named = "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if not named and not os.environ.get("OTEL_SERVICE_NAME"):
        attributes["service.name"] = "penstock-gateway"
    return attributes
