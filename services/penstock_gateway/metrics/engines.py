"""What this gateway knows of its engine cores, as Prometheus' families."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from penstock.client.session_state import STATUS_MAX_AGE
from penstock.metrics.histogram import Histogram
from penstock.metrics.vllm_names import CACHE_CONFIG, DRAFTS, STEP_TOKENS, cache_config

if TYPE_CHECKING:
    from penstock.client import EngineClient
    from penstock.client.client_view import EngineState
    from penstock.protocol.to_frontend import Status

_LABEL = ["model_name"]
_OF_ONE = ["model_name", "engine"]
OURS = "Counted by this gateway; add up the values of several."
THEIRS = "Counted by an engine core; every gateway reports the same value."


def engine_families(client: EngineClient, label: list[str]) -> Iterator[Metric]:
    """Each engine core's own words, unless it reports its metrics itself or has been silent; then
    what this gateway did with them. label: the model's name. engine: its number here, as vLLM."""
    engines = client.engines
    fresh = [(str(each.index), each.status) for each in engines if _speaks_for(each)]
    told = [(index, status) for index, status in fresh if status is not None]
    if told:
        yield from _told(told, label)
    yield _known(engines, label)
    yield from _routed(client, label)


def _speaks_for(engine: EngineState) -> bool:
    own = engine.welcome is not None and engine.welcome.own_metrics
    return engine.connected and engine.status_age <= STATUS_MAX_AGE and not own


def _told(told: list[tuple[str, Status]], label: list[str]) -> Iterator[Metric]:
    gauges = (
        ("num_requests_running", "Running sequences.", lambda status: status.running),
        ("num_requests_waiting", "Waiting sequences.", lambda s: s.waiting),
        ("kv_cache_usage_perc", "Fraction of KV blocks in use, 0 to 1.", _used),
    )
    for name, words, value in gauges:
        gauge = GaugeMetricFamily(f"vllm:{name}", f"{words} {THEIRS}", labels=_OF_ONE)
        for index, status in told:
            gauge.add_metric([*label, index], value(status))
        yield gauge
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
        counter = CounterMetricFamily(f"vllm:{name}", f"{words} {THEIRS}", labels=_OF_ONE)
        for index, status in told:
            counter.add_metric([*label, index], count(status))
        yield counter
    yield _steps(told, label)
    yield _cache_config(told, label)


def _steps(told: list[tuple[str, Status]], label: list[str]) -> Metric:
    steps = HistogramMetricFamily(
        "vllm:iteration_tokens_total", f"Tokens computed per step. {THEIRS}", labels=_OF_ONE
    )
    for index, status in told:
        if len(status.step_tokens) == len(STEP_TOKENS) + 1:
            counted = Histogram.counted(STEP_TOKENS, status.step_tokens, status.tokens_computed)
            steps.add_metric([*label, index], counted.cumulative(), counted.total)
    return steps


def _cache_config(told: list[tuple[str, Status]], label: list[str]) -> Metric:
    info = GaugeMetricFamily(
        "vllm:cache_config_info",
        f"Always 1; the labels describe the KV cache. {THEIRS}",
        labels=[*_OF_ONE, *CACHE_CONFIG],
    )
    for index, status in told:
        config = cache_config(
            status.block_size, status.blocks_total, status.host_blocks, status.prefix_caching
        )
        info.add_metric([*label, index, *config], 1)
    return info


def _used(status: Status) -> float:
    return 1 - status.blocks_free / status.blocks_total if status.blocks_total else 0.0


def _known(engines: list[EngineState], label: list[str]) -> Metric:
    gauge = GaugeMetricFamily(
        "penstock:engines",
        "State of the engine cores, as seen by this gateway.",
        labels=[*_LABEL, "state"],
    )
    gauge.add_metric([*label, "known"], len(engines))
    gauge.add_metric([*label, "connected"], sum(each.connected for each in engines))
    gauge.add_metric([*label, "ready"], sum(each.ready for each in engines))
    return gauge


def _routed(client: EngineClient, label: list[str]) -> Iterator[Metric]:
    routed = CounterMetricFamily(
        "penstock:routed_requests",
        f"Requests sent to an engine core, by the reason for its choice. {OURS}",
        labels=[*_OF_ONE, "why"],
    )
    for (index, why), count in sorted(client.routed.items()):
        routed.add_metric([*label, str(index), why], count)
    yield routed
    for name, words, count in (
        ("moved_requests", "Requests resumed on another engine core.", client.moved),
        (
            "refused_resumptions",
            "Requests that ended because no engine core computes with their fingerprint.",
            client.refused,
        ),
    ):
        counter = CounterMetricFamily(f"penstock:{name}", f"{words} {OURS}", labels=_LABEL)
        counter.add_metric(label, count)
        yield counter
