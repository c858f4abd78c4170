"""The core's figures of one moment, as a value that another thread may read."""

from __future__ import annotations

from typing import NamedTuple

from penstock.metrics.histogram import Histogram
from penstock.protocol.common import SleepLevel
from penstock_engine.core import EngineCore
from penstock_engine.metrics.counts import EngineCounts
from penstock_engine.request.request import Request, Sequence
from penstock_engine.request.states import SequenceState


class TenantMetrics(NamedTuple):
    """One tenant, or all that have no name of their own. Tokens since the process began.
    debt: see Policy.debts; of several the highest."""

    prompt_tokens: int
    generation_tokens: int
    open_requests: int
    debt: float


class MetricsSnapshot(NamedTuple):
    """now: when it was so, by the core's clock. unready: why the engine core is not ready, or "".
    paused: by an operator.  sleep_level: as Status.sleeping.
    drafts: works on a sequence that had drafts, drafted tokens, and those that were right; kept_at:
    the latter by place.
    media: items of prompts that were encoded, and whose encodings were found; bytes that were sent
    to workers; sequences that wait for media.  encoder_rows: of the encoder cache.
    adapters: that are loaded, and that wait for a place; sequences that wait for adapters.
    adapter_loads: by how they ended; adapter_seconds: that those took which went well.
    sessions: that are live; session_blocks: that are kept for them.
    prefetched: KV blocks that came before their session, or their prompt, did.
    audits: by result; audits_skipped: by reason; audit_differences: by tier.
    streams_resumed: readers of answers that had lost an earlier connection, by what became of them;
    orphans: requests that go on without a reader.  shared: that got the answer of an earlier one.
    parts: seconds of steps by what they went into.  fair: whether the policy keeps accounts.
    EngineCounts are since the process began."""

    now: float
    model: str
    unready: str
    draining: bool
    paused: bool
    sleep_level: SleepLevel
    running: int
    waiting: int
    waiting_tokens: int
    oldest_waiting: float
    blocks: dict[str, int]
    blocks_total: int
    block_size: int
    kv_groups: int
    prefix_caching: bool
    host_blocks: dict[str, int]
    swapped: dict[str, int]
    disk_blocks: dict[str, int]
    sessions: int
    session_blocks: int
    prefetched: dict[str, int]
    steps: int
    step_budget: int
    preemptions: int
    cache_queries: int
    cache_hits: int
    parts: dict[str, float]
    histograms: dict[str, Histogram]
    ended: dict[str, int]
    rejected: dict[str, int]
    resumed: int
    handed_over: int
    streams_resumed: dict[str, int]
    shared: int
    orphans: int
    drafts: dict[str, int]
    kept_at: list[int]
    media: dict[str, int]
    encoder_rows: dict[str, int]
    adapters: dict[str, int]
    adapter_loads: dict[str, int]
    adapter_seconds: float
    adapter_places: int
    worker_deaths: int
    audits: dict[str, int]
    audits_skipped: dict[str, int]
    audit_differences: dict[str, int]
    audits_waiting: int
    frontends: int
    workers: int
    tenants: dict[str, TenantMetrics]
    fair: bool


def state_of(core: EngineCore, now: float, planning: float, applying: float) -> MetricsSnapshot:
    """planning, applying: seconds that both have taken. Linear in the requests that are open."""
    scheduler, counts, workers = core.state.scheduling, core.state.counts, core.state.workers
    cache, pool, media = scheduler.cache, scheduler.pool, core.state.media
    host = None if cache is None else cache.host
    kept = 0 if cache is None else cache.num_kept
    adapters, debts, audits = core.state.adapters, scheduler.policy.debts(), core.state.audits
    free, total = (0, 0) if pool is None else (pool.num_free, pool.num_blocks)
    host_used, host_total = (0, 0) if host is None else (host.num_used, host.num_blocks)
    return MetricsSnapshot(
        now=now,
        model=core.state.facts.served_name,
        unready=core.state.health(now)[1],
        draining=core.draining,
        paused=core.state.paused,
        sleep_level=core.state.sleep.level,
        running=scheduler.num_running,
        waiting=core.num_waiting,
        waiting_tokens=scheduler.queue.num_tokens
        + core.state.grammars.waiting_tokens
        + media.part_of().tokens
        + adapters.part_of().tokens,
        oldest_waiting=_oldest_waiting(core, now),
        blocks={"free": free - kept, "used": total - free, "cached": kept},
        blocks_total=total,
        block_size=scheduler.block_size,
        kv_groups=len(scheduler.kv_groups),
        prefix_caching=core.state.facts.config.cache.enable_prefix_caching,
        host_blocks={"free": host_total - host_used, "used": host_used},
        swapped={
            "out": counts.swapped_out + (0 if cache is None else cache.num_swapped_out),
            "in": counts.swapped_in + (0 if cache is None else cache.num_swapped_in),
        },
        sessions=core.state.kv_sessions.num_live,
        session_blocks=0 if cache is None else cache.retention.num_blocks,
        prefetched=dict(counts.prefetched),
        disk_blocks={"read": counts.disk_blocks_read, "missed": counts.disk_blocks_missed},
        steps=scheduler.num_steps,
        step_budget=scheduler.budget,
        preemptions=scheduler.num_preemptions,
        cache_queries=scheduler.fresh_share.total_brought,
        cache_hits=scheduler.fresh_share.total_found,
        parts={
            "plan": planning,
            "apply": applying,
            "compute": workers.compute_seconds,
            "dispatch": counts.dispatch_seconds,
        },
        histograms={
            "step_seconds": counts.step_seconds.copy(),
            "step_sequences": counts.step_sequences.copy(),
            "iteration_tokens": counts.iteration_tokens.copy(),
            "recovery_seconds": counts.recovery_seconds.copy(),
        },
        ended=dict(counts.ended),
        rejected=dict(counts.rejected),
        resumed=counts.resumed,
        handed_over=counts.handed_over,
        streams_resumed={
            "adopted": core.state.kept_answers.adopted,
            "recomputed": core.state.kept_answers.recomputed,
        },
        shared=core.state.kept_answers.shared,
        orphans=len(core.state.frontends.orphanage.requests),
        drafts={
            "drafts": counts.drafts,
            "drafted": counts.drafted_tokens,
            "kept": counts.kept_tokens,
        },
        kept_at=list(counts.kept_at),
        media={
            "encoded": counts.media_encoded,
            "found": counts.media_found,
            "bytes": counts.media_bytes,
            "waiting": media.num_waiting,
        },
        encoder_rows={
            "used": media.encodings.used,
            "free": media.encodings.capacity - media.encodings.used,
        },
        adapters={
            "loaded": len(adapters.places.loaded),
            "wanted": len(adapters.places.line),
            "waiting": adapters.num_waiting,
        },
        adapter_loads={"loaded": counts.adapters_loaded, "failed": counts.adapters_failed},
        adapter_seconds=counts.adapter_seconds,
        adapter_places=adapters.places.count,
        worker_deaths=counts.worker_deaths,
        audits={
            "equal": 0 if audits is None else audits.equal,
            "different": 0 if audits is None else audits.different,
        },
        audits_skipped={"busy": 0} | ({} if audits is None else audits.skipped),
        audit_differences={"none": 0} | ({} if audits is None else audits.found),
        audits_waiting=0 if audits is None else audits.num_held,
        frontends=len(core.state.frontends),
        workers=workers.num_ready,
        tenants=_tenants(core, counts, debts or {}),
        fair=debts is not None,
    )


def _oldest_waiting(core: EngineCore, now: float) -> float:
    """Seconds since the first of those was accepted that wait and have been given nothing."""
    oldest = now
    for request in core.state.frontends.requests():
        if request.accepted < oldest and any(map(_waits, request.sequences.values())):
            oldest = request.accepted
    return now - oldest


def _waits(sequence: Sequence) -> bool:
    idle = sequence.state is not SequenceState.RUNNING and not sequence.finished
    return idle and not sequence.num_generated


def _tenants(
    core: EngineCore, counts: EngineCounts, owed: dict[str, float]
) -> dict[str, TenantMetrics]:
    generated, opened = dict(counts.generation_tokens), dict.fromkeys(counts.prompt_tokens, 0)
    for request in core.state.frontends.requests():
        generated[counts.label(request.tenant)] += _generated(request)
    for tenant, count in core.state.frontends.open_requests.by_tenant().items():
        opened[counts.label(tenant)] += count
    debts = dict.fromkeys(opened, 0.0)
    for tenant, debt in owed.items():
        name = counts.label(tenant)
        debts[name] = max(debt, debts[name])
    return {
        name: TenantMetrics(prompt, generated[name], opened[name], debts[name])
        for name, prompt in counts.prompt_tokens.items()
    }


def _generated(request: Request) -> int:
    """Tokens of those of its sequences that have not been counted for good."""
    return sum(s.num_generated for s in request.sequences.values() if not s.finished)
