"""Queue, batch and tenants as rows. Bounded by what is shown, not by what there is."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from penstock.protocol.live import (
    MAX_BATCH_ROWS,
    MAX_QUEUE_ROWS,
    MAX_TENANT_ROWS,
    BatchRow,
    BatchView,
    QueueRow,
    QueueView,
    TenantRow,
    TenantView,
)
from penstock_engine.core import EngineCore
from penstock_engine.policies.policy import Standing
from penstock_engine.request.request import Sequence


def queue_view(core: EngineCore, now: float) -> QueueView:
    """The sequences that wait, in the queue or for something else, for display."""
    state = core.state
    queue, grammars, media, remote_kv, adapters = (
        state.scheduling.queue,
        state.grammars,
        state.media,
        state.remote_kv,
        state.adapters,
    )
    shown = queue.first(MAX_QUEUE_ROWS)
    for parked in (grammars, media, adapters, remote_kv):
        if len(shown) < MAX_QUEUE_ROWS:
            shown += parked.first_parked(MAX_QUEUE_ROWS - len(shown))
    rows = [_waits(sequence, now) for sequence in shown]
    return QueueView(
        rows=rows,
        sequences=queue.num_sequences,
        requests=queue.num_requests,
        tokens=queue.num_tokens,
        grammar=grammars.num_waiting,
        remote_kv=remote_kv.num_waiting,
        media=media.num_waiting,
        adapters=adapters.num_waiting,
        oldest=max((row.age for row in rows), default=0.0),
    )


def _waits(sequence: Sequence, now: float) -> QueueRow:
    request = sequence.request
    return QueueRow(
        request=request.name,
        sequence=sequence.index,
        tenant=request.tenant,
        state=sequence.state.value,
        tokens=sequence.num_tokens,
        emitted=len(sequence.emitted),
        age=round(now - request.accepted, 3),
        priority=request.priority,
    )


def batch_view(core: EngineCore, now: float) -> BatchView:
    """The sequences that run, for display."""
    running = core.state.scheduling.running
    return BatchView(
        rows=[_runs(sequence, now) for sequence in islice(running.values(), MAX_BATCH_ROWS)],
        running=len(running),
        slots=core.state.scheduling.max_num_seqs,
        prefilling=sum(map(_prefills, running.values())),
    )


def _prefills(sequence: Sequence) -> bool:
    """Whether it has more to compute than its newest token; a step in flight is not counted."""
    return sequence.progress.computed < sequence.num_tokens - 1


def _runs(sequence: Sequence, now: float) -> BatchRow:
    request, table = sequence.request, sequence.table
    return BatchRow(
        slot=-1 if sequence.slot is None else sequence.slot,
        request=request.name,
        sequence=sequence.index,
        tenant=request.tenant,
        phase="prefill" if _prefills(sequence) else "decode",
        computed=sequence.progress.computed,
        tokens=sequence.num_tokens,
        prompt=len(request.prompt_token_ids),
        cached=request.cached_tokens or 0,
        emitted=len(sequence.emitted),
        most=sequence.most_tokens,
        blocks=0 if table is None else table.num_blocks,
        flying=sequence.progress.in_flight,
        age=round(now - request.accepted, 3),
        preemptions=sequence.num_preemptions,
        drafted=0 if sequence.drafts is None else sequence.drafts.drafted,
        kept=0 if sequence.drafts is None else sequence.drafts.kept,
    )


def tenant_view(core: EngineCore, tokens: Counter[str]) -> TenantView:
    """tokens: that the steps shown have computed for each tenant."""
    opened = core.state.frontends.open_requests
    busiest = opened.busiest(MAX_TENANT_ROWS)
    running = Counter(
        sequence.request.tenant for sequence in core.state.scheduling.running.values()
    )
    policy = core.state.scheduling.policy
    standings = policy.standings(tenant for tenant, _ in busiest)
    rows = [
        _tenant(tenant, requests, running[tenant], tokens[tenant], standings.get(tenant))
        for tenant, requests in busiest
    ]
    return TenantView(rows=rows, total=len(opened), policy=policy.name)


def _tenant(
    tenant: str, requests: int, running: int, tokens: int, standing: Standing | None
) -> TenantRow:
    return TenantRow(
        tenant=tenant,
        requests=requests,
        running=running,
        tokens=tokens,
        weight=None if standing is None else standing.weight,
        debt=None if standing is None else standing.debt,
    )
