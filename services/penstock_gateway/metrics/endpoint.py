"""GET /metrics: on the main port, or with API keys on the admin port. Its families tell of
requests, of models that are started on demand, and of what is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric
from starlette.requests import Request
from starlette.responses import Response

from penstock.metrics.families import CONTENT_TYPE, Families, keyed, renderer
from penstock_gateway.http.operations import Operation, OperationRoute
from penstock_gateway.keys.ring import forbidden
from penstock_gateway.metrics.adapters import adapter_families
from penstock_gateway.metrics.engines import OURS, engine_families
from penstock_gateway.metrics.preparers import preparer_families
from penstock_gateway.metrics.rate_limits import rate_limit_families
from penstock_gateway.plugged.metrics import PluggedMetrics
from penstock_gateway.service import Service

if TYPE_CHECKING:
    from penstock_gateway.models.backend import ModelBackend
    from penstock_gateway.service import LineCounts


def residence_families(backend: ModelBackend, families: Families) -> Iterator[Metric]:
    """Metrics of a model that is started and ended on demand; none for others."""
    residence = backend.residence
    if residence is None:
        return
    yield families.gauge(
        "penstock:model_loaded",
        "1 if the model is loaded, 0 otherwise.",
        backend.unready_reason() is None,
    )
    yield families.gauge(
        "penstock:model_waiting_requests",
        f"Requests waiting for the model to load. {OURS}",
        residence.waiting,
    )
    yield families.histogram(
        "penstock:model_wait_seconds",
        f"Time that requests waited for the model to load. {OURS}",
        residence.waits,
    )


SHARED = "Read from the database; every process that uses it reports the same value."
STATUSES = ("validating", "in_progress", "finalizing", "cancelling")
"""States of batches that are shown although there is none."""


def storage_families(service: Service, families: Families) -> Iterator[Metric]:
    """Metrics of what is stored; none if nothing is."""
    if service.store is not None:
        yield from _stock(service, families)
        yield families.gauge(
            "penstock:open_uploads", f"Uploads in progress. {OURS}", service.uploads.open
        )
    if service.lines is not None:
        yield from _lines(service.lines, families)


def _stock(service: Service, families: Families) -> Iterator[Metric]:
    """What the last look found; the endpoint has it look before it collects."""
    stock = None if service.store is None else service.store.stock.latest
    if stock is None:
        return
    yield families.gauges(
        "penstock:batches",
        f"Stored batches, by status. {SHARED}",
        ["status"],
        keyed(dict.fromkeys(STATUSES, 0) | stock.batches),
    )
    for name, words, value in (
        ("batch_waiting_lines", "Lines of batches not yet answered.", stock.waiting_lines),
        ("stored_files", "Stored files.", stock.files),
        ("stored_file_bytes", "Bytes of stored files.", stock.file_bytes),
        ("stored_responses", "Stored responses.", stock.responses),
        ("stored_response_bytes", "Bytes of stored responses.", stock.response_bytes),
    ):
        yield families.gauge(f"penstock:{name}", f"{words} {SHARED}", value)


def _lines(counts: LineCounts, families: Families) -> Iterator[Metric]:
    outcomes = ("completed", "failed", "refused")
    yield families.counters(
        "penstock:batch_lines",
        f"Lines of batches answered, by outcome. {OURS}",
        ["outcome"],
        keyed({outcome: getattr(counts, outcome) for outcome in outcomes}),
    )
    yield families.gauge(
        "penstock:batch_open_lines", f"Lines of batches being answered. {OURS}", counts.open
    )


OPERATION = Operation(
    method="GET",
    path="/metrics",
    summary="Metrics for Prometheus, with vLLM's names",
    tag="operations",
    access="metrics",
    media_type="text/plain",
)


def routes(service: Service) -> list[OperationRoute]:
    """The main port's."""

    async def elsewhere(request: Request) -> Response:
        raise forbidden("with API keys, /metrics is served on the admin port (--admin-port)")

    return [OPERATION.route(elsewhere)] if service.ring is not None else admin_routes(service)


def admin_routes(service: Service) -> list[OperationRoute]:
    """The admin port's."""
    render = renderer(PluggedMetrics(Collector(service).collect, service).collect)

    async def metrics(request: Request) -> Response:
        if service.store is not None:
            await service.store.stock.look()
        return Response(render(), media_type=CONTENT_TYPE)

    return [OPERATION.route(metrics)]


class Collector:
    """Collects the gateway's metrics when they are asked for."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        # What all models have in common stands under the one model's name, or under none.
        shared = Families(self._service.served() or "")
        yield from self._of_models(lambda model, own: engine_families(model.client, own))
        yield from self._of_models(_prefix_cache)
        yield shared.gauge(
            "penstock:gateway_open_requests",
            f"Requests in progress. {OURS}",
            self._service.open_requests,
        )
        yield from self._of_models(_tokens)
        yield from self._responses(shared)
        yield from preparer_families(self._service.preparers, shared)
        yield from self._of_models(_spend)
        yield from rate_limit_families(self._service.limits, shared)
        yield from self._of_models(adapter_families)
        yield from self._media(shared)
        yield from storage_families(self._service, shared)
        yield from self._of_models(_histograms)
        yield from self._of_models(residence_families)

    def _of_models(
        self, families_of: Callable[[ModelBackend, Families], Iterable[Metric]]
    ) -> Iterator[Metric]:
        """Families of each model, those of one name as one."""
        found: dict[str, Metric] = {}
        for backend in self._service.models.backends:
            for family in families_of(backend, Families(backend.name or "")):
                if family.name in found:
                    found[family.name].samples.extend(family.samples)
                else:
                    found[family.name] = family
        yield from found.values()

    def _responses(self, families: Families) -> Iterator[Metric]:
        yield families.counters(
            "penstock:http_responses",
            f"HTTP responses by status. {OURS}",
            ["code"],
            {(str(status),): count for status, count in sorted(self._service.responses.items())},
        )
        yield families.gauge(
            "penstock:realtime_connections",
            f"Open WebSockets. {OURS}",
            self._service.connections.open,
        )

    def _media(self, families: Families) -> Iterator[Metric]:
        desk = self._service.media
        pool, cache = desk.pool.counts, desk.cache
        for name, words, value in (
            ("items", "Media items in requests.", desk.counts.items),
            ("bytes", "Bytes of media files in requests.", desk.counts.bytes),
            ("prepared", "Media items prepared.", pool.items),
            ("refused", "Media items that could not be prepared.", pool.refused),
            ("prepare_seconds", "Seconds spent preparing media, in all processes.", pool.seconds),
            ("processes_ended", "Media processes that died while preparing an item.", pool.ended),
            ("cache_queries", "Lookups in the cache of prepared media items.", cache.queries),
            ("cache_hits", "Hits in the cache of prepared media items.", cache.hits),
        ):
            yield families.counter(f"penstock:media_{name}", f"{words} {OURS}", value)
        yield families.gauge(
            "penstock:media_held_bytes",
            f"Bytes of media held by open requests. {OURS}",
            desk.budget.held,
        )


def _prefix_cache(backend: ModelBackend, families: Families) -> Iterator[Metric]:
    """Metrics of the prefix cache, unless an engine core exports them itself: they would be counted
    twice."""
    welcome, counts = backend.client.welcome, backend.counts
    if welcome is not None and welcome.own_metrics:
        return
    for name, words, value in (
        ("prefix_cache_queries", "Prompt tokens looked up in cache.", counts.cache_queries),
        ("prefix_cache_hits", "Prompt tokens found in the KV cache.", counts.cache_hits),
    ):
        yield families.counter(f"vllm:{name}", f"{words} {OURS}", value)


def _tokens(backend: ModelBackend, families: Families) -> Iterator[Metric]:
    counts = backend.counts
    for name, words, value in (
        ("prompt_tokens", "Prompt tokens.", counts.prompt_tokens),
        ("generation_tokens", "Generated tokens.", counts.generation_tokens),
    ):
        yield families.counter(f"vllm:{name}", f"{words} {OURS}", value)
    yield families.counters(
        "vllm:request_success",
        f"Sequences that ended, by finish reason. {OURS}",
        ["finished_reason"],
        keyed(counts.finished),
    )


def _spend(backend: ModelBackend, families: Families) -> Iterator[Metric]:
    """Metrics of what API keys have used; none if there are no keys."""
    if backend.spend is None:
        return
    for name, words, field in (
        ("prompts", "Prompts sent with an API key.", "prompts"),
        ("prompt_tokens", "Prompt tokens sent with an API key.", "prompt_tokens"),
        (
            "cached_prompt_tokens",
            "Prompt tokens of an API key found in the KV cache, counted when a generation ends.",
            "cached_tokens",
        ),
        ("generation_tokens", "Tokens generated for an API key.", "generation_tokens"),
    ):
        yield families.counters(
            f"penstock:key_{name}",
            f"{words} {OURS}",
            ["key"],
            keyed({key: getattr(spend, field) for key, spend in backend.spend.by_key.items()}),
        )


def _histograms(backend: ModelBackend, families: Families) -> Iterator[Metric]:
    counts = backend.counts
    for name, words, histogram in (
        ("time_to_first_token_seconds", "From submission.", counts.first_token),
        (
            "inter_token_latency_seconds",
            "Time between two tokens of a choice.",
            counts.between_tokens,
        ),
        (
            "e2e_request_latency_seconds",
            "Time from submission to the last token.",
            counts.whole_request,
        ),
        ("request_prompt_tokens", "Prompt tokens per prompt.", counts.request_prompt_tokens),
        (
            "request_generation_tokens",
            "Generated tokens per prompt, all sequences together.",
            counts.request_generation_tokens,
        ),
        (
            "request_max_num_generation_tokens",
            "Generated tokens of a prompt's longest sequence.",
            counts.longest_sequence,
        ),
        ("request_params_max_tokens", "Maximum tokens requested per sequence.", counts.max_tokens),
        ("request_params_n", "Sequences requested per prompt.", counts.choices),
        ("request_queue_time_seconds", "Time from submission to the first step.", counts.queue),
        (
            "request_prefill_time_seconds",
            "Time from the first step to the first token.",
            counts.prefill,
        ),
        ("request_decode_time_seconds", "Time from the first token to the last.", counts.decode),
        (
            "request_inference_time_seconds",
            "Time from the first step to the last token.",
            counts.inference,
        ),
    ):
        yield families.histogram(f"vllm:{name}", f"{words} {OURS}", histogram)
