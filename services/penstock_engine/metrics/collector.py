"""The engine core's state as Prometheus' families: vLLM's names for what vLLM has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from penstock.metrics.cache_config import CACHE_CONFIG, cache_config
from penstock.metrics.drafts import DRAFTS
from penstock.metrics.families import Families
from penstock_engine.metrics.snapshot import MetricsSnapshot

SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
"""By level, with vLLM's words."""


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
    yield from _tenants(families, state)


def _now(families: Families, state: MetricsSnapshot, ready: bool) -> Iterator[Metric]:
    gauge = families.gauge
    yield gauge("penstock:engine_ready", "1: a worker is up, and steps happen or could.", ready)
    yield gauge("penstock:engine_draining", "1: nothing new is accepted.", state.draining)
    yield gauge("penstock:engine_paused", "1: an operator has paused it.", state.paused)
    yield families.gauges(
        "vllm:engine_sleep_state",
        "awake: 1, or 0 where the model sleeps. weights_offloaded: 1 at level 1, where weights may "
        "stay; discard_all: 1 at level 2.",
        ["sleep_state"],
        {(name,): int(state.sleep_level == level) for level, name in enumerate(SLEEP_STATES)},
    )
    yield gauge("penstock:frontends", "Gateways and libraries connected.", state.frontends)
    yield gauge("penstock:workers", "Workers that are ready.", state.workers)
    yield gauge("vllm:num_requests_running", "Running sequences.", state.running)
    yield gauge("vllm:num_requests_waiting", "Waiting sequences.", state.waiting)
    yield gauge(
        "penstock:waiting_tokens",
        "Tokens (prompt and emitted) of the sequences that wait.",
        state.waiting_tokens,
    )
    yield gauge(
        "penstock:oldest_waiting_seconds",
        "Age of the oldest request with a sequence that waits and has been given nothing.",
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
        "All KV blocks. used: by sequences; cached: free, with contents that can be found; free: "
        "the others.",
        ["state"],
        _keyed(state.blocks),
    )
    yield families.gauge(
        "penstock:kv_groups",
        "Block tables of each sequence: several where layers see more or less of it.",
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
        "KV blocks that were found on disk, in a store or at another engine core: read, or missed, "
        "as they were damaged or deleted by then.",
        ["result"],
        _keyed(state.disk_blocks),
    )
    yield families.gauge(
        "penstock:sessions",
        "Sessions of which a request is open, or for which KV blocks are kept.",
        state.sessions,
    )
    yield families.gauge(
        "penstock:session_kv_blocks", "KV blocks that are kept for sessions.", state.session_blocks
    )
    yield families.counters(
        "penstock:prefetched_kv_blocks",
        "KV blocks that were brought back before their session or prompt came, by the tier they"
        " were in.",
        ["tier"],
        _keyed(state.prefetched),
    )
    for name, words, value in (
        ("prefix_cache_queries", "Prompt tokens looked up in the KV cache.", state.cache_queries),
        ("prefix_cache_hits", "Prompt tokens found in the KV cache.", state.cache_hits),
        ("num_preemptions", "Sequences that lost their blocks to others.", state.preemptions),
    ):
        yield families.counter(f"vllm:{name}", words, value)


def _steps(families: Families, state: MetricsSnapshot) -> Iterator[Metric]:
    yield families.counter("penstock:steps", "Steps applied.", state.steps)
    yield families.gauge(
        "penstock:step_budget_tokens",
        "Tokens that a step may compute: what is set, less after a device ran out of memory.",
        state.step_budget,
    )
    yield families.counters(
        "penstock:step_part_seconds",
        "compute: the worker's time in steps; dispatch: what they took beyond that; both together "
        "are the sum of step_seconds. plan, apply: the engine core's own work, much of it while "
        "the worker computes.",
        ["part"],
        _keyed(state.parts),
    )
    for name, words, key in (
        (
            "penstock:step_seconds",
            "From a plan sent, or the step before it done if that is later, to the result.",
            "step_seconds",
        ),
        ("penstock:step_sequences", "Sequences in a step.", "step_sequences"),
        ("vllm:iteration_tokens_total", "Tokens computed in a step.", "iteration_tokens"),
        (
            "penstock:recovery_seconds",
            "From the loss of a worker to the next step done, or to a worker that is ready where "
            "nothing is to be done.",
            "recovery_seconds",
        ),
    ):
        yield families.histogram(name, words, state.histograms[key])
    yield families.counter(
        "penstock:worker_deaths", "Workers lost, whatever the reason.", state.worker_deaths
    )


def _drafts(families: Families, state: MetricsSnapshot) -> Iterator[Metric]:
    for (name, words), key in zip(DRAFTS.items(), ("drafts", "drafted", "kept"), strict=True):
        yield families.counter(f"vllm:spec_decode_{name}", words, state.drafts[key])
    yield families.counters(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Drafted tokens that were right, by place in the draft, from 0; the last one stands for "
        "all behind it.",
        ["position"],
        _keyed({str(place): count for place, count in enumerate(state.kept_at)}),
    )


def _requests(families: Families, state: MetricsSnapshot) -> Iterator[Metric]:
    yield families.counters(
        "penstock:requests_ended",
        "Requests that ended, by how the last of their sequences did.",
        ["end"],
        _keyed(state.ended),
    )
    yield families.counters(
        "penstock:requests_rejected", "Requests refused.", ["code"], _keyed(state.rejected)
    )
    yield families.counter(
        "penstock:requests_resumed",
        "Requests accepted that had been accepted before, here or elsewhere.",
        state.resumed,
    )
    yield families.counter(
        "penstock:requests_handed_over",
        "Requests with which another engine core goes on, as this one drains.",
        state.handed_over,
    )


def _media(families: Families, state: MetricsSnapshot) -> Iterator[Metric]:
    media = state.media
    yield families.counters(
        "penstock:encoder_items",
        "Pictures, sounds and videos of prompts: encoded; found: their encoding was there, or the "
        "KV cache had what it was for.",
        ["outcome"],
        _keyed({"encoded": media["encoded"], "found": media["found"]}),
    )
    yield families.counter(
        "penstock:encoder_bytes",
        "Bytes of prepared items that were sent to workers.",
        media["bytes"],
    )
    yield families.gauge(
        "penstock:media_waiting", "Sequences that wait for media.", media["waiting"]
    )
    yield families.gauges(
        "penstock:encoder_cache_rows",
        "Embeddings that the encoder cache has room for.",
        ["state"],
        _keyed(state.encoder_rows),
    )


def _adapters(families: Families, state: MetricsSnapshot) -> Iterator[Metric]:
    adapters = state.adapters
    yield families.gauges(
        "penstock:adapters",
        "Adapters. loaded: workers have them, or load them; wanted: they wait for a place.",
        ["state"],
        _keyed({"loaded": adapters["loaded"], "wanted": adapters["wanted"]}),
    )
    yield families.gauge(
        "penstock:adapter_places", "Adapters that may be loaded at a time.", state.adapter_places
    )
    yield families.gauge(
        "penstock:adapters_waiting", "Sequences that wait for adapters.", adapters["waiting"]
    )
    yield families.counters(
        "penstock:adapter_loads",
        "Adapters that workers were told to load, by how it ended.",
        ["outcome"],
        _keyed(state.adapter_loads),
    )
    yield families.counter(
        "penstock:adapter_load_seconds",
        "Time that loading took of those that were loaded.",
        state.adapter_seconds,
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
        "Requests that have not ended.",
        label,
        _keyed({name: tenant.open_requests for name, tenant in tenants.items()}),
    )
    if state.fair:
        yield families.gauges(
            "penstock:tenant_debt",
            "What a tenant has been given beyond the least served with work, for its weight, in "
            "generated tokens.",
            label,
            _keyed({name: tenant.debt for name, tenant in tenants.items()}),
        )


def _keyed(values: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    return {(name,): value for name, value in values.items()}
