"""From what a request gathered to its spans, with the names of OpenTelemetry's conventions for HTTP
and generative AI, vLLM's where it has others, and `penstock.` for the rest.

    POST /v1/…   server span, the whole request
      queue      from the submission until the sequence ran
      prefill    until its first token
      decode     until its end

The engine's clock is another one, so its account is laid from the moment of submission on, which
precedes acceptance by one message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import Status, StatusCode, set_span_in_context

from penstock_gateway.http.errors import ClientGone, as_http_error
from penstock_gateway.tracing.trace import Trace

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from starlette.types import Scope

    from penstock.client.timing import RequestTiming
    from penstock.protocol.to_frontend import SequenceTimeline


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
