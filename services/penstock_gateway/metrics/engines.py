"""What this gateway knows of its engine cores, as Prometheus' families."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from penstock.client.session_state import STATUS_MAX_AGE
from penstock.metrics.families import Families, keyed
from penstock.metrics.histogram import Histogram
from penstock.metrics.vllm_names import CACHE_CONFIG, DRAFTS, STEP_TOKENS, cache_config

if TYPE_CHECKING:
    from penstock.client import EngineClient
    from penstock.client.client_view import EngineState
    from penstock.protocol.to_frontend import Status

OURS = "Counted by this gateway; add up the values of several."
THEIRS = "Counted by an engine core; every gateway reports the same value."


def engine_families(client: EngineClient, families: Families) -> Iterator[Metric]:
    """Each engine core's own words, unless it reports its metrics itself or has been silent; then
    what this gateway did with them. The label engine is its number here, as in vLLM."""
    engines = client.engines
    fresh = [(str(each.index), each.status) for each in engines if _speaks_for(each)]
    statuses = [(index, status) for index, status in fresh if status is not None]
    if statuses:
        yield from _of_statuses(statuses, families)
    yield _known(engines, families)
    yield from _routed(client, families)


def _speaks_for(engine: EngineState) -> bool:
    own = engine.welcome is not None and engine.welcome.own_metrics
    return engine.connected and engine.status_age <= STATUS_MAX_AGE and not own


def _of_statuses(statuses: list[tuple[str, Status]], families: Families) -> Iterator[Metric]:
    gauges: tuple[tuple[str, str, Callable[[Status], float]], ...] = (
        ("num_requests_running", "Running sequences.", lambda status: status.running),
        ("num_requests_waiting", "Waiting sequences.", lambda s: s.waiting),
        ("kv_cache_usage_perc", "Fraction of KV blocks in use, 0 to 1.", _used),
    )
    for name, words, value in gauges:
        values = keyed({index: value(status) for index, status in statuses})
        yield families.gauges(f"vllm:{name}", f"{words} {THEIRS}", ["engine"], values)
    drafted: dict[str, Callable[[Status], int]] = {
        "num_drafts": lambda status: status.drafts,
        "num_draft_tokens": lambda status: status.drafted_tokens,
        "num_accepted_tokens": lambda status: status.kept_tokens,
    }
    counts: list[tuple[str, str, Callable[[Status], int]]] = [
        ("num_preemptions", "Preemptions.", lambda status: status.preemptions),
        *((f"spec_decode_{name}", DRAFTS[name], count) for name, count in drafted.items()),
    ]
    for name, words, count in counts:
        values = keyed({index: count(status) for index, status in statuses})
        yield families.counters(f"vllm:{name}", f"{words} {THEIRS}", ["engine"], values)
    yield families.histograms(
        "vllm:iteration_tokens_total",
        f"Tokens computed per step. {THEIRS}",
        ["engine"],
        {
            (index,): Histogram.counted(STEP_TOKENS, status.step_tokens, status.tokens_computed)
            for index, status in statuses
            if len(status.step_tokens) == len(STEP_TOKENS) + 1
        },
    )
    yield families.gauges(
        "vllm:cache_config_info",
        f"Always 1; the labels describe the KV cache. {THEIRS}",
        ["engine", *CACHE_CONFIG],
        {(index, *_cache_config(status)): 1 for index, status in statuses},
    )


def _cache_config(status: Status) -> tuple[str, ...]:
    return cache_config(
        status.block_size, status.blocks_total, status.host_blocks, status.prefix_caching
    )


def _used(status: Status) -> float:
    return 1 - status.blocks_free / status.blocks_total if status.blocks_total else 0.0


def _known(engines: list[EngineState], families: Families) -> Metric:
    states = {
        "known": len(engines),
        "connected": sum(each.connected for each in engines),
        "ready": sum(each.ready for each in engines),
    }
    words = "State of the engine cores, as seen by this gateway."
    return families.gauges("penstock:engines", words, ["state"], keyed(states))


def _routed(client: EngineClient, families: Families) -> Iterator[Metric]:
    yield families.counters(
        "penstock:routed_requests",
        f"Requests sent to an engine core, by the reason for its choice. {OURS}",
        ["engine", "why"],
        {(str(index), why): count for (index, why), count in sorted(client.routed.items())},
    )
    for name, words, count in (
        ("moved_requests", "Requests resumed on another engine core.", client.moved),
        (
            "refused_resumptions",
            "Requests that ended because no engine core computes with their fingerprint.",
            client.refused,
        ),
    ):
        yield families.counter(f"penstock:{name}", f"{words} {OURS}", count)
