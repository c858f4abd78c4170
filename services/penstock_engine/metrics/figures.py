"""The engine core's figures: each with its name, its words, and what it is read of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

from prometheus_client.core import Metric

from penstock.metrics.families import Families
from penstock.metrics.histogram import Histogram
from penstock.metrics.vllm_names import CACHE_CONFIG, DRAFTS
from penstock_engine.core import EngineCore
from penstock_engine.metrics.moment import Moment

Value = float | Histogram | Mapping[str, float] | Mapping[tuple[str, ...], float]
Read = Callable[[Moment], Value | None]
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
"""Names of the levels of sleep, in vLLM's words."""


class Figure(NamedTuple):
    """A family of numbers, or a histogram.

    name: a counter's without its `_total`.  words: what it counts.
    read: a number; numbers by the labels' values; or a histogram. None leaves the family out. At
    most linear in the open requests.
    labels: names of the labels in addition to the model's.
    """

    kind: Literal["gauge", "counter"]
    name: str
    words: str
    read: Read
    labels: tuple[str, ...] = ()

    def family(self, families: Families, value: Value) -> Metric:
        """The family as Prometheus reads it."""
        if isinstance(value, Histogram):
            return families.histogram(self.name, self.words, value)
        make = families.gauges if self.kind == "gauge" else families.counters
        if not isinstance(value, Mapping):
            return make(self.name, self.words, (), {(): value})
        keyed = {key if isinstance(key, tuple) else (key,): number for key, number in value.items()}
        return make(self.name, self.words, self.labels, keyed)


def _gauge(name: str, words: str, read: Read, *labels: str) -> Figure:
    return Figure("gauge", name, words, read, labels)


def _counter(name: str, words: str, read: Read, *labels: str) -> Figure:
    return Figure("counter", name, words, read, labels)


FIGURES = (
    _gauge(
        "penstock:engine_draining", "1: no new requests are accepted.", lambda m: m.core.draining
    ),
    _gauge("penstock:engine_paused", "1: paused by an operator.", lambda m: m.state.paused),
    _gauge(
        "vllm:engine_sleep_state",
        "awake: 1 if awake, 0 if asleep. weights_offloaded: 1 at level 1, at which weights "
        "may stay; discard_all: 1 at level 2.",
        lambda m: {
            name: int(m.state.sleep.level == level) for level, name in enumerate(SLEEP_STATES)
        },
        "sleep_state",
    ),
    _gauge(
        "penstock:frontends",
        "Connected front ends: gateways and libraries.",
        lambda m: len(m.state.frontends),
    ),
    _gauge("penstock:workers", "Ready workers.", lambda m: m.workers.num_ready),
    _gauge("vllm:num_requests_running", "Running sequences.", lambda m: m.scheduler.num_running),
    _gauge("vllm:num_requests_waiting", "Waiting sequences.", lambda m: m.core.num_waiting),
    _gauge(
        "penstock:waiting_tokens",
        "Prompt and emitted tokens of the waiting sequences.",
        lambda m: m.waiting_tokens,
    ),
    _gauge(
        "penstock:oldest_waiting_seconds",
        "Age of the oldest request with a waiting sequence that has never run.",
        lambda m: m.oldest_waiting,
    ),
    _gauge(
        "vllm:kv_cache_usage_perc",
        "Fraction of KV blocks in use, 0 to 1.",
        lambda m: m.used_fraction,
    ),
    _gauge(
        "vllm:cache_config_info",
        "Always 1; the labels describe the KV cache.",
        lambda m: {m.cache_config: 1},
        *CACHE_CONFIG,
    ),
    _gauge(
        "penstock:kv_blocks",
        "KV blocks by state. used: held by sequences; cached: free, with contents that can "
        "be reused; free: the rest.",
        lambda m: m.blocks,
        "state",
    ),
    _gauge(
        "penstock:kv_groups",
        "Block tables per sequence: one for each attention window.",
        lambda m: len(m.scheduler.kv_groups),
    ),
    _gauge("penstock:host_kv_blocks", "Blocks of the host tier.", lambda m: m.host_blocks, "state"),
    _counter(
        "penstock:swapped_blocks",
        "KV blocks copied to the host tier (out) and back (in).",
        lambda m: m.swapped,
        "direction",
    ),
    _counter(
        "penstock:disk_kv_blocks",
        "KV blocks found on disk, in a store or at another engine core. read: fetched; "
        "missed: damaged, or deleted before the fetch.",
        lambda m: {"read": m.counts.disk_blocks_read, "missed": m.counts.disk_blocks_missed},
        "result",
    ),
    _gauge(
        "penstock:sessions",
        "Sessions with an open request or kept KV blocks.",
        lambda m: m.state.kv_sessions.num_live,
    ),
    _gauge(
        "penstock:session_kv_blocks",
        "KV blocks kept for sessions.",
        lambda m: 0 if m.cache is None else m.cache.retention.num_blocks,
    ),
    _counter(
        "penstock:prefetched_kv_blocks",
        "KV blocks prefetched before their session or prompt arrived, by tier.",
        lambda m: m.counts.prefetched,
        "tier",
    ),
    _counter(
        "vllm:prefix_cache_queries",
        "Prompt tokens looked up in the KV cache.",
        lambda m: m.scheduler.fresh_share.total_brought,
    ),
    _counter(
        "vllm:prefix_cache_hits",
        "Prompt tokens found in the KV cache.",
        lambda m: m.scheduler.fresh_share.total_found,
    ),
    _counter("vllm:num_preemptions", "Preempted sequences.", lambda m: m.scheduler.num_preemptions),
    _counter("penstock:steps", "Steps applied.", lambda m: m.scheduler.num_steps),
    _gauge(
        "penstock:step_budget_tokens",
        "Token budget of a step: the configured value, or less after a device ran out of memory.",
        lambda m: m.scheduler.budget,
    ),
    _counter(
        "penstock:step_part_seconds",
        "compute: the worker's time in steps; dispatch: the rest of the steps' time; the two "
        "add up to the sum of step_seconds. plan, apply: the engine core's own work, mostly "
        "done while the worker computes.",
        lambda m: m.step_parts,
        "part",
    ),
    _gauge(
        "penstock:step_seconds",
        "Time from sending the plan, or from the end of the previous step if that is later, "
        "to the result.",
        lambda m: m.counts.step_seconds,
    ),
    _gauge("penstock:step_sequences", "Sequences per step.", lambda m: m.counts.step_sequences),
    _gauge(
        "vllm:iteration_tokens_total",
        "Tokens computed per step.",
        lambda m: m.counts.iteration_tokens,
    ),
    _gauge(
        "penstock:recovery_seconds",
        "Time from the loss of a worker to the next completed step, or to a ready worker if "
        "there is nothing to compute.",
        lambda m: m.counts.recovery_seconds,
    ),
    _counter(
        "penstock:worker_deaths", "Workers lost, for any reason.", lambda m: m.counts.worker_deaths
    ),
    *(
        _counter(f"vllm:spec_decode_{name}", words, read)
        for (name, words), read in zip(
            DRAFTS.items(),
            (
                lambda m: m.counts.drafts,
                lambda m: m.counts.drafted_tokens,
                lambda m: m.counts.kept_tokens,
            ),
            strict=True,
        )
    ),
    _counter(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Accepted draft tokens, by position in the draft from 0; the last position includes "
        "all later ones.",
        lambda m: {str(place): count for place, count in enumerate(m.counts.kept_at)},
        "position",
    ),
    _counter(
        "penstock:requests_ended",
        "Requests that ended, by the finish reason of their last sequence.",
        lambda m: m.counts.ended,
        "end",
    ),
    _counter(
        "penstock:requests_rejected", "Requests refused.", lambda m: m.counts.rejected, "code"
    ),
    _counter(
        "penstock:requests_resumed",
        "Accepted requests that had been accepted before, here or on another engine core.",
        lambda m: m.counts.resumed,
    ),
    _counter(
        "penstock:requests_handed_over",
        "Requests handed over to another engine core because this one drains.",
        lambda m: m.counts.handed_over,
    ),
    _counter(
        "penstock:streams_resumed",
        "Streams that went on after a break. adopted: with what had been computed; "
        "recomputed: from the beginning.",
        lambda m: {"adopted": m.kept_answers.adopted, "recomputed": m.kept_answers.recomputed},
        "how",
    ),
    _counter(
        "penstock:requests_shared",
        "Requests whose answer was computed along with an earlier, equal one's. No other "
        "count of this engine core has them.",
        lambda m: m.kept_answers.shared,
    ),
    _gauge(
        "penstock:orphaned_requests",
        "Requests that go on being computed after their gateway or client has gone.",
        lambda m: len(m.state.frontends.orphanage.requests),
    ),
    _counter(
        "penstock:encoder_items",
        "Images, audios and videos in prompts. encoded: by a worker; found: in the encoder "
        "cache, or already covered by the KV cache.",
        lambda m: {"encoded": m.counts.media_encoded, "found": m.counts.media_found},
        "outcome",
    ),
    _counter(
        "penstock:encoder_bytes",
        "Bytes of prepared media items sent to workers.",
        lambda m: m.counts.media_bytes,
    ),
    _gauge("penstock:media_waiting", "Sequences waiting for media.", lambda m: m.media.num_waiting),
    _gauge(
        "penstock:encoder_cache_rows",
        "Capacity of the encoder cache in embeddings.",
        lambda m: m.encoder_rows,
        "state",
    ),
    _gauge(
        "penstock:adapters",
        "Adapters by state. loaded: in the workers, or being loaded; wanted: waiting for a place.",
        lambda m: {"loaded": len(m.adapters.places.loaded), "wanted": len(m.adapters.places.line)},
        "state",
    ),
    _gauge(
        "penstock:adapter_places",
        "Maximum number of loaded adapters.",
        lambda m: m.adapters.places.count,
    ),
    _gauge(
        "penstock:adapters_waiting",
        "Sequences waiting for adapters.",
        lambda m: m.adapters.num_waiting,
    ),
    _counter(
        "penstock:adapter_loads",
        "Loads of adapters, by outcome.",
        lambda m: {"loaded": m.counts.adapters_loaded, "failed": m.counts.adapters_failed},
        "outcome",
    ),
    _counter(
        "penstock:adapter_load_seconds",
        "Time of successful loads of adapters.",
        lambda m: m.counts.adapter_seconds,
    ),
    _counter(
        "penstock:audits",
        "Sequences computed again by audits, by result.",
        lambda m: m.audits,
        "result",
    ),
    _counter(
        "penstock:audits_skipped",
        "Sequences chosen for an audit that had none, by reason.",
        lambda m: {"busy": 0} | (m.state.audits.skipped if m.state.audits else {}),
        "reason",
    ),
    _counter(
        "penstock:audit_differences",
        "Audits that found a difference, by the tier of the KV cache that is suspected; "
        "none: computed without the cache.",
        lambda m: {"none": 0} | (m.state.audits.found if m.state.audits else {}),
        "tier",
    ),
    _gauge(
        "penstock:audits_waiting",
        "Sequences waiting for their audit.",
        lambda m: m.state.audits.num_held if m.state.audits else 0,
    ),
    _counter(
        "penstock:tenant_prompt_tokens",
        "Prompt tokens of accepted requests, once each.",
        lambda m: m.counts.prompt_tokens,
        "tenant",
    ),
    _counter(
        "penstock:tenant_generation_tokens",
        "Tokens generated.",
        lambda m: m.generation_tokens,
        "tenant",
    ),
    _gauge("penstock:tenant_open_requests", "Open requests.", lambda m: m.open_requests, "tenant"),
    _gauge(
        "penstock:tenant_debt",
        "Service that a tenant has received beyond the least-served tenant with work, "
        "divided by its weight, in generated tokens.",
        lambda m: m.tenant_debts,
        "tenant",
    ),
)


class FigureSnapshot(NamedTuple):
    """The figures of one moment, which another thread may read.

    now: by the core's clock.  model: its served name.  unready: why the engine core is not ready,
    or "".  values: by the figure's name.
    """

    now: float
    model: str
    unready: str
    draining: bool
    values: dict[str, Value]


def snapshot(core: EngineCore, now: float, planning: float, applying: float) -> FigureSnapshot:
    """planning, applying: seconds that both have taken. Linear in the requests that are open."""
    moment = Moment(core, now, planning, applying)
    read = {figure.name: figure.read(moment) for figure in FIGURES}
    return FigureSnapshot(
        now=now,
        model=core.state.facts.served_name,
        unready=core.state.health(now)[1],
        draining=core.draining,
        values={name: _copied(value) for name, value in read.items() if value is not None},
    )


def _copied(value: Value) -> Value:
    if isinstance(value, Histogram):
        return value.copy()
    return dict(value) if isinstance(value, Mapping) else value


def families_of(state: FigureSnapshot, *, ready: bool) -> Iterator[Metric]:
    """All of them. ready: whether the loop turns, and the core says that steps happen."""
    families = Families(state.model)
    yield families.gauge(
        "penstock:engine_ready", "1: a worker is connected and can compute steps.", ready
    )
    for figure in FIGURES:
        if (value := state.values.get(figure.name)) is not None:
            yield figure.family(families, value)
