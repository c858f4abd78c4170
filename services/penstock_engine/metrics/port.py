"""The engine core's metrics port, beside its loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

from prometheus_client.core import Metric

from penstock.config.settings import MetricsSettings
from penstock.metrics.families import CONTENT_TYPE, Families, renderer
from penstock.metrics.port import Page, Reply, bind, health_page, serving
from penstock.metrics.vllm_names import CACHE_CONFIG, DRAFTS, cache_config
from penstock_engine.core import EngineCore
from penstock_engine.metrics.observed import EngineHealth, Observed
from penstock_engine.metrics.snapshot import MetricsSnapshot


@contextmanager
def metrics_port(core: EngineCore, settings: MetricsSettings, port: int) -> Iterator[EngineCore]:
    """Serves it meanwhile. Gives the core that the loop is to use.

    Raises StartupError where the port can't be had.
    """
    observed = Observed(core)
    sock = bind(settings.metrics_host, port, "--engine-metrics-port")
    health = EngineHealth(observed, core.state.facts.config.transport.beat_interval / 4)
    with serving(sock, pages(health)):
        yield cast(EngineCore, observed)


def pages(health: EngineHealth) -> dict[str, Page]:
    """The pages of the port, by path."""

    def collect() -> Iterator[Metric]:
        state = health.snapshot()
        if state is not None:
            yield from families_of(state, ready=not (health.stuck() or state.unready))

    render = renderer(collect)
    return {
        "/metrics": lambda: Reply(200, render(), CONTENT_TYPE),
        "/health/live": health_page(health.dead),
        "/health/ready": health_page(health.unready),
    }


SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
"""Names of the levels of sleep, in vLLM's words."""


def families_of(state: MetricsSnapshot, *, ready: bool) -> Iterator[Metric]:
    """All of them. ready: whether the loop turns, and the core says that steps happen."""
    families = Families(state.model)
    yield from _now(families, state, ready)
    yield from _room(families, state)
    yield from _steps(families, state)
    yield from _drafts(families, state)
    yield from _requests(families, state)
    yield from _media(families, state)
    yield from _adapters(families, state)
    yield from _audits(families, state)
    yield from _tenants(families, state)


def _now(families: Families, state: MetricsSnapshot, ready: bool) -> Iterator[Metric]:
    gauge = families.gauge
    yield gauge("penstock:engine_ready", "1: a worker is connected and can compute steps.", ready)
    yield gauge("penstock:engine_draining", "1: no new requests are accepted.", state.draining)
    yield gauge("penstock:engine_paused", "1: paused by an operator.", state.paused)
    yield families.gauges(
        "vllm:engine_sleep_state",
        "awake: 1 if awake, 0 if asleep. weights_offloaded: 1 at level 1, at which weights may "
        "stay; discard_all: 1 at level 2.",
        ["sleep_state"],
        {(name,): int(state.sleep_level == level) for level, name in enumerate(SLEEP_STATES)},
    )
    yield gauge(
        "penstock:frontends", "Connected front ends: gateways and libraries.", state.frontends
    )
    yield gauge("penstock:workers", "Ready workers.", state.workers)
    yield gauge("vllm:num_requests_running", "Running sequences.", state.running)
    yield gauge("vllm:num_requests_waiting", "Waiting sequences.", state.waiting)
    yield gauge(
        "penstock:waiting_tokens",
        "Prompt and emitted tokens of the waiting sequences.",
        state.waiting_tokens,
    )
    yield gauge(
        "penstock:oldest_waiting_seconds",
        "Age of the oldest request with a waiting sequence that has never run.",
        state.oldest_waiting,
    )


def _room(families: Families, state: MetricsSnapshot) -> Iterator[Metric]:
    used = state.blocks["used"] / state.blocks_total if state.blocks_total else 0.0
    yield families.gauge("vllm:kv_cache_usage_perc", "Fraction of KV blocks in use, 0 to 1.", used)
    config = cache_config(
        state.block_size,
        state.blocks_total,
        sum(state.host_blocks.values()),
        state.prefix_caching,
    )
    yield families.gauges(
        "vllm:cache_config_info",
        "Always 1; the labels describe the KV cache.",
        CACHE_CONFIG,
        {config: 1},
    )
    yield families.gauges(
        "penstock:kv_blocks",
        "KV blocks by state. used: held by sequences; cached: free, with contents that can be "
        "reused; free: the rest.",
        ["state"],
        _keyed(state.blocks),
    )
    yield families.gauge(
        "penstock:kv_groups",
        "Block tables per sequence: one for each attention window.",
        state.kv_groups,
    )
    yield families.gauges(
        "penstock:host_kv_blocks", "Blocks of the host tier.", ["state"], _keyed(state.host_blocks)
    )
    yield families.counters(
        "penstock:swapped_blocks",
        "KV blocks copied to the host tier (out) and back (in).",
        ["direction"],
        _keyed(state.swapped),
    )
    yield families.counters(
        "penstock:disk_kv_blocks",
        "KV blocks found on disk, in a store or at another engine core. read: fetched; missed: "
        "damaged, or deleted before the fetch.",
        ["result"],
        _keyed(state.disk_blocks),
    )
    yield families.gauge(
        "penstock:sessions",
        "Sessions with an open request or kept KV blocks.",
        state.sessions,
    )
    yield families.gauge(
        "penstock:session_kv_blocks", "KV blocks kept for sessions.", state.session_blocks
    )
    yield families.counters(
        "penstock:prefetched_kv_blocks",
        "KV blocks prefetched before their session or prompt arrived, by tier.",
        ["tier"],
        _keyed(state.prefetched),
    )
    for name, words, value in (
        ("prefix_cache_queries", "Prompt tokens looked up in the KV cache.", state.cache_queries),
        ("prefix_cache_hits", "Prompt tokens found in the KV cache.", state.cache_hits),
        ("num_preemptions", "Preempted sequences.", state.preemptions),
    ):
        yield families.counter(f"vllm:{name}", words, value)


def _steps(families: Families, state: MetricsSnapshot) -> Iterator[Metric]:
    yield families.counter("penstock:steps", "Steps applied.", state.steps)
    yield families.gauge(
        "penstock:step_budget_tokens",
        "Token budget of a step: the configured value, or less after a device ran out of memory.",
        state.step_budget,
    )
    yield families.counters(
        "penstock:step_part_seconds",
        "compute: the worker's time in steps; dispatch: the rest of the steps' time; the two add "
        "up to the sum of step_seconds. plan, apply: the engine core's own work, mostly done while "
        "the worker computes.",
        ["part"],
        _keyed(state.parts),
    )
    for name, words, key in (
        (
            "penstock:step_seconds",
            "Time from sending the plan, or from the end of the previous step if that is later, to "
            "the result.",
            "step_seconds",
        ),
        ("penstock:step_sequences", "Sequences per step.", "step_sequences"),
        ("vllm:iteration_tokens_total", "Tokens computed per step.", "iteration_tokens"),
        (
            "penstock:recovery_seconds",
            "Time from the loss of a worker to the next completed step, or to a ready worker if "
            "there is nothing to compute.",
            "recovery_seconds",
        ),
    ):
        yield families.histogram(name, words, state.histograms[key])
    yield families.counter(
        "penstock:worker_deaths", "Workers lost, for any reason.", state.worker_deaths
    )


def _drafts(families: Families, state: MetricsSnapshot) -> Iterator[Metric]:
    for (name, words), key in zip(DRAFTS.items(), ("drafts", "drafted", "kept"), strict=True):
        yield families.counter(f"vllm:spec_decode_{name}", words, state.drafts[key])
    yield families.counters(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Accepted draft tokens, by position in the draft from 0; the last position includes all "
        "later ones.",
        ["position"],
        _keyed({str(place): count for place, count in enumerate(state.kept_at)}),
    )


def _requests(families: Families, state: MetricsSnapshot) -> Iterator[Metric]:
    yield families.counters(
        "penstock:requests_ended",
        "Requests that ended, by the finish reason of their last sequence.",
        ["end"],
        _keyed(state.ended),
    )
    yield families.counters(
        "penstock:requests_rejected", "Requests refused.", ["code"], _keyed(state.rejected)
    )
    yield families.counter(
        "penstock:requests_resumed",
        "Accepted requests that had been accepted before, here or on another engine core.",
        state.resumed,
    )
    yield families.counter(
        "penstock:requests_handed_over",
        "Requests handed over to another engine core because this one drains.",
        state.handed_over,
    )
    yield families.counters(
        "penstock:streams_resumed",
        "Streams that went on after a break. adopted: with what had been computed; recomputed: from"
        " the beginning.",
        ["how"],
        _keyed(state.streams_resumed),
    )
    yield families.counter(
        "penstock:requests_shared",
        "Requests whose answer was computed along with an earlier, equal one's. No other count of"
        " this engine core has them.",
        state.shared,
    )
    yield families.gauge(
        "penstock:orphaned_requests",
        "Requests that go on being computed after their gateway or client has gone.",
        state.orphans,
    )


def _media(families: Families, state: MetricsSnapshot) -> Iterator[Metric]:
    media = state.media
    yield families.counters(
        "penstock:encoder_items",
        "Images, audios and videos in prompts. encoded: by a worker; found: in the encoder cache, "
        "or already covered by the KV cache.",
        ["outcome"],
        _keyed({"encoded": media["encoded"], "found": media["found"]}),
    )
    yield families.counter(
        "penstock:encoder_bytes",
        "Bytes of prepared media items sent to workers.",
        media["bytes"],
    )
    yield families.gauge("penstock:media_waiting", "Sequences waiting for media.", media["waiting"])
    yield families.gauges(
        "penstock:encoder_cache_rows",
        "Capacity of the encoder cache in embeddings.",
        ["state"],
        _keyed(state.encoder_rows),
    )


def _adapters(families: Families, state: MetricsSnapshot) -> Iterator[Metric]:
    adapters = state.adapters
    yield families.gauges(
        "penstock:adapters",
        "Adapters by state. loaded: in the workers, or being loaded; wanted: waiting for a place.",
        ["state"],
        _keyed({"loaded": adapters["loaded"], "wanted": adapters["wanted"]}),
    )
    yield families.gauge(
        "penstock:adapter_places", "Maximum number of loaded adapters.", state.adapter_places
    )
    yield families.gauge(
        "penstock:adapters_waiting", "Sequences waiting for adapters.", adapters["waiting"]
    )
    yield families.counters(
        "penstock:adapter_loads",
        "Loads of adapters, by outcome.",
        ["outcome"],
        _keyed(state.adapter_loads),
    )
    yield families.counter(
        "penstock:adapter_load_seconds",
        "Time of successful loads of adapters.",
        state.adapter_seconds,
    )


def _audits(families: Families, state: MetricsSnapshot) -> Iterator[Metric]:
    for name, words, label, values in (
        ("audits", "Sequences computed again by audits, by result.", "result", state.audits),
        (
            "audits_skipped",
            "Sequences chosen for an audit that had none, by reason.",
            "reason",
            state.audits_skipped,
        ),
        (
            "audit_differences",
            "Audits that found a difference, by the tier of the KV cache that is suspected; none: "
            "computed without the cache.",
            "tier",
            state.audit_differences,
        ),
    ):
        yield families.counters(f"penstock:{name}", words, [label], _keyed(values))
    yield families.gauge(
        "penstock:audits_waiting", "Sequences waiting for their audit.", state.audits_waiting
    )


def _tenants(families: Families, state: MetricsSnapshot) -> Iterator[Metric]:
    tenants, label = state.tenants, ["tenant"]
    yield families.counters(
        "penstock:tenant_prompt_tokens",
        "Prompt tokens of accepted requests, once each.",
        label,
        _keyed({name: tenant.prompt_tokens for name, tenant in tenants.items()}),
    )
    yield families.counters(
        "penstock:tenant_generation_tokens",
        "Tokens generated.",
        label,
        _keyed({name: tenant.generation_tokens for name, tenant in tenants.items()}),
    )
    yield families.gauges(
        "penstock:tenant_open_requests",
        "Open requests.",
        label,
        _keyed({name: tenant.open_requests for name, tenant in tenants.items()}),
    )
    if state.fair:
        yield families.gauges(
            "penstock:tenant_debt",
            "Service that a tenant has received beyond the least-served tenant with work, divided "
            "by its weight, in generated tokens.",
            label,
            _keyed({name: tenant.debt for name, tenant in tenants.items()}),
        )


def _keyed(values: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    return {(name,): value for name, value in values.items()}
