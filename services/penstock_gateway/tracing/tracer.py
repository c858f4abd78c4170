"""Sampling, context and export, by OpenTelemetry's SDK; loaded only if tracing is on."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagators.textmap import Getter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, Status, StatusCode, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from penstock.client.timing import LAST_WORD
from penstock.process import logs
from penstock.version import __version__
from penstock_gateway.http.errors import ClientGone, as_http_error
from penstock_gateway.tracing.trace import Trace

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from starlette.types import Scope

    from penstock.client.timing import RequestTiming
    from penstock.config.settings import GatewayConfig
    from penstock.protocol.to_frontend import SequenceTimeline


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


# From what a request gathered to its spans, with the names of OpenTelemetry's conventions for HTTP
# and generative AI, vLLM's where it has others, and `penstock.` for the rest.
#
#     POST /v1/…   server span, the whole request
#       queue      from the submission until the sequence ran
#       prefill    until its first token
#       decode     until its end
#
# The engine's clock is another one, so its account is laid from the moment of submission on, which
# precedes acceptance by one message.

MAX_SEQUENCES = 64
"""Sequences of one request that have spans of their own."""


def request_attributes(scope: Scope, request_id: str, operation: str | None) -> dict[str, Any]:
    """What is known when a request arrives. operation: Operation.traced_as."""
    path = scope["path"]
    attributes = {
        "http.request.method": scope.get("method", "GET"),
        "http.route": path,
        "url.path": path,
        "url.scheme": scope.get("scheme", "http"),
        "gen_ai.request.id": request_id,
        "gen_ai.provider.name": "penstock",
    }
    if operation is not None:
        attributes["gen_ai.operation.name"] = operation
    if scope.get("client"):
        attributes["client.address"] = scope["client"][0]
    return attributes


def write(trace: Trace, tracer: Tracer) -> None:
    """Ends the request's span, with those of its sequences inside."""
    span = trace.span
    span.set_attributes({name: value for name, value in _facts(trace) if value is not None})
    _tell_error(trace)
    context = set_span_in_context(span)
    left = MAX_SEQUENCES
    for number, run in enumerate(trace.runs):
        timing = run.timing
        if timing is None:
            continue
        for index in sorted(timing.sequences)[:left]:
            left -= 1
            _sequence(trace, timing, index, number * run.n + index, tracer, context)
    span.end(trace.at(trace.ended))


def _facts(trace: Trace) -> Iterator[tuple[str, Any]]:
    runs = trace.runs
    yield "http.response.status_code", trace.status
    if not trace.model:
        return
    yield "gen_ai.request.model", trace.model
    yield "gen_ai.response.model", trace.model
    yield "gen_ai.response.id", trace.id
    yield "gen_ai.request.stream", trace.streamed
    yield from _asked(trace)
    if not trace.prompts:
        return
    yield "gen_ai.usage.input_tokens", trace.prompt_tokens
    yield "gen_ai.usage.prompt_tokens", trace.prompt_tokens
    yield "penstock.prompts", trace.prompts
    cached = [run.cached for run in runs if run.cached is not None]
    if cached:
        yield "gen_ai.usage.cache_read.input_tokens", sum(cached)
    if trace.params is not None and trace.prompts == len(runs):
        tokens = sum(run.tokens for run in runs)
        yield "gen_ai.usage.output_tokens", tokens
        yield "gen_ai.usage.completion_tokens", tokens
        yield "gen_ai.usage.num_sequences", sum(run.n for run in runs)
        reasons = [run.reasons[index] for run in runs for index in sorted(run.reasons)]
        yield "gen_ai.response.finish_reasons", reasons[:MAX_SEQUENCES]
    yield from _latencies(trace)


def _asked(trace: Trace) -> Iterator[tuple[str, Any]]:
    params = trace.params
    if params is None:
        return
    yield "gen_ai.request.max_tokens", params.max_tokens
    yield "gen_ai.request.temperature", params.temperature
    yield "gen_ai.request.top_p", params.top_p
    yield "gen_ai.request.top_k", params.top_k or None
    yield "gen_ai.request.seed", params.seed if (params.seed or 0) < 2**63 else None
    yield "gen_ai.request.presence_penalty", params.presence_penalty or None
    yield "gen_ai.request.frequency_penalty", params.frequency_penalty or None
    yield "gen_ai.request.choice.count", params.n
    yield "gen_ai.request.n", params.n


def _latencies(trace: Trace) -> Iterator[tuple[str, Any]]:
    """Seconds. Those of the engine are of the sequence that ended last."""
    yield "gen_ai.latency.e2e", trace.ended - trace.begun
    first = min((r.first_token for r in trace.runs if r.first_token is not None), default=None)
    if first is not None:
        yield "gen_ai.latency.time_to_first_token", first - trace.begun
        yield "gen_ai.response.time_to_first_chunk", first - trace.begun
    complete = [timing for timing in trace.timings if timing.last in timing.sequences]
    if not complete:
        return
    timing = max(complete, key=lambda one: one.ended)
    engine = timing.sequences[timing.last]
    whole = total(engine)
    yield "gen_ai.latency.time_in_queue", engine.queue
    yield "gen_ai.latency.time_in_model_inference", whole - engine.queue
    if engine.first_token is not None:
        yield "gen_ai.latency.time_in_model_prefill", max(0.0, engine.first_token - engine.queue)
        yield "gen_ai.latency.time_in_model_decode", max(0.0, whole - engine.first_token)
    yield "gen_ai.latency.time_in_model_execute", engine.compute


def total(engine: SequenceTimeline) -> float:
    """Seconds that a sequence was in the engine."""
    return engine.queue + engine.requeued + engine.compute + engine.dispatch + engine.idle


def _sequence(
    trace: Trace, timing: RequestTiming, index: int, choice: int, tracer: Tracer, context: Any
) -> None:
    """queue, prefill and decode of one sequence, end to end."""
    engine = timing.sequences[index]
    end = total(engine)
    first = engine.first_token
    parts = [("queue", min(engine.queue, end))]
    if end > engine.queue:
        parts.append(("prefill", end if first is None else min(max(first, engine.queue), end)))
    if first is not None and end > first:
        parts.append(("decode", end))
    since = timing.submitted
    for name, until in parts:
        attributes: dict[str, Any] = {"penstock.choice": choice}
        if name == parts[-1][0]:
            attributes |= _account(engine)
        span = tracer.start_span(
            name, context=context, start_time=trace.at(since), attributes=attributes
        )
        # The end of one is the beginning of the next, to the nanosecond.
        # What came after a stop string is no part of the request.
        since = min(timing.submitted + until, trace.ended)
        span.end(trace.at(since))


def _account(engine: SequenceTimeline) -> dict[str, Any]:
    """Attributes of a whole sequence, put on its last span."""
    return {
        "penstock.requeued_seconds": engine.requeued,
        "penstock.compute_seconds": engine.compute,
        "penstock.dispatch_seconds": engine.dispatch,
        "penstock.idle_seconds": engine.idle,
        "penstock.share_seconds": engine.share,
        "penstock.steps": engine.steps,
        "penstock.preemptions": engine.preemptions,
        "penstock.swaps": engine.swaps,
        "penstock.cached_tokens": engine.cached_tokens,
        "penstock.stored_tokens": engine.stored_tokens,
        "penstock.drafted_tokens": engine.drafted,
        "penstock.kept_tokens": engine.kept,
        "penstock.extra_steps": engine.extra_steps,
    }


def _tell_error(trace: Trace) -> None:
    """Sets a request's error as the conventions for HTTP servers have it: what is the client's
    doing is no error of this span's, but has a type all the same."""
    error, span = trace.error, trace.span
    if isinstance(error, ClientGone):
        span.set_attribute("error.type", "client_disconnected")
        span.add_event("client disconnected", timestamp=trace.at(trace.ended))
        return
    if error is None:
        if trace.status is not None and trace.status >= 400:
            span.set_attribute("error.type", str(trace.status))
        if trace.status is not None and trace.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        return
    answer = as_http_error(error)
    if trace.status is None:
        span.set_attribute("http.response.status_code", answer.status)
    span.set_attribute("error.type", answer.body.code or str(answer.status))
    if answer.status < 500:
        return
    span.set_status(Status(StatusCode.ERROR, answer.body.message))
    if answer.status == 500:
        span.record_exception(error, timestamp=trace.at(trace.ended))
