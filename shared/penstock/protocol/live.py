"""What an engine core shows of itself to who watches it: rows for people to read, no decisions.

Everything here is bounded, whatever the engine core holds: lists say of how many they show part.
No prompt and no output is in it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

MAX_QUEUE_ROWS = 100
MAX_BATCH_ROWS = 256
MAX_TENANT_ROWS = 100
MAX_FRONTEND_ROWS = 100
MAX_CELLS = 4096
MAX_STEPS = 120
"""Rows, cells and steps in a snapshot."""

SNAPSHOT_INTERVAL = 0.5
"""Seconds between snapshots, at least."""

LONGEST_LEASE = 30.0
"""Seconds for which a Watch can ask for snapshots."""

Phase = Literal["prefill", "decode"]


class QueueRow(msgspec.Struct, frozen=True):
    """A sequence that waits. request: its name, as in x-request-id.  state: why it waits.
    tokens: prompt and emitted.  age: seconds since the request was accepted."""

    request: str
    sequence: int
    tenant: str
    state: str
    tokens: int
    emitted: int
    age: float
    priority: int


class QueueView(msgspec.Struct, frozen=True):
    """rows: who is next comes first; then those that wait for a grammar, or for remote KV.
    sequences, requests, tokens: all in the queue.  grammar, remote_kv: sequences that wait for
    these, which are not in the queue.  oldest: greatest age among the rows, seconds."""

    rows: list[QueueRow]
    sequences: int
    requests: int
    tokens: int
    grammar: int
    remote_kv: int
    oldest: float


class BatchRow(msgspec.Struct, frozen=True):
    """A sequence in a slot. computed of `tokens` have KV, by settled steps.  prompt: tokens of its
    prompt, of which `cached` were found.  blocks: KV blocks that it holds.  flying: steps in flight
    that work on it."""

    slot: int
    request: str
    sequence: int
    tenant: str
    phase: Phase
    computed: int
    tokens: int
    prompt: int
    cached: int
    emitted: int
    most: int
    """Tokens that max_tokens lets it grow to, prompt included."""
    blocks: int
    flying: int
    age: float
    preemptions: int


class BatchView(msgspec.Struct, frozen=True):
    """rows: in the order in which they started.  running: all of them.  slots: that there are."""

    rows: list[BatchRow]
    running: int
    slots: int
    prefilling: int


class BlockView(msgspec.Struct, frozen=True):
    """The KV pool. total: blocks.  free + cached + used + shared is all of them: nobody holds it
    and its contents mean nothing; nobody holds it, and its contents can be found; one sequence
    holds it; several do.  findable: whose contents can be found, held or not.

    map: three bytes for each cell of `span` blocks (the last cell may have fewer): how many of them
    are used, shared, cached; where span is above 255, as parts of 255.
    host_total, host_used: blocks of the host tier.  swapped_out, swapped_in: copies to it and back.
    """

    total: int
    block_size: int
    free: int
    cached: int
    used: int
    shared: int
    findable: int
    span: int
    map: bytes
    host_total: int
    host_used: int
    swapped_out: int
    swapped_in: int


class TenantRow(msgspec.Struct, frozen=True):
    """tenant: the digest of its API key, empty for who has none.  requests: open ones.
    running: sequences in slots.  tokens: that the steps shown have computed for it.
    weight: of its share.  debt: tokens generated for it (or what costs as much) beyond those of the
    tenant that has been given least, by their weights; both None where the policy isn't `fair`."""

    tenant: str
    requests: int
    running: int
    tokens: int
    weight: int | None = None
    debt: float | None = None


class TenantView(msgspec.Struct, frozen=True):
    """rows: those with most open requests.  total: tenants with open requests."""

    rows: list[TenantRow]
    total: int
    policy: str


class StepRow(msgspec.Struct, frozen=True, array_like=True):
    """A settled step. seconds: since it was sent, or the one before it was settled, if that was
    later.  compute: of them, the worker's.  prefill, decode: tokens computed.  sequences: in it."""

    number: int
    seconds: float
    compute: float
    prefill: int
    decode: int
    sequences: int


class StepView(msgspec.Struct, frozen=True):
    """rows: the last ones, oldest first, of those that were settled while somebody watched.
    total: settled since boot.  in_flight: sent, and not settled."""

    rows: list[StepRow]
    total: int
    in_flight: int
    preemptions: int
    tokens_computed: int
    tokens_generated: int


class FrontendRow(msgspec.Struct, frozen=True):
    """A front end's session. requests: open ones.  age: of the session, seconds."""

    name: str
    requests: int
    age: float


class FrontendView(msgspec.Struct, frozen=True):
    """rows: the oldest sessions."""

    rows: list[FrontendRow]
    total: int


class WorkerView(msgspec.Struct, frozen=True):
    """device, fingerprint: what the worker said of itself; empty while there is none that is ready.
    lost: worker sessions that have ended since boot."""

    ready: bool
    reason: str
    device: str
    fingerprint: str
    lost: int


class Snapshot(msgspec.Struct, frozen=True, tag="snapshot", kw_only=True):
    """The engine core at one moment. Sent every SNAPSHOT_INTERVAL seconds to who has a lease.

    uptime: seconds.  build_seconds: that making this took.
    """

    boot: str
    model: str
    uptime: float
    draining: bool
    queue: QueueView
    batch: BatchView
    blocks: BlockView | None
    """None without a worker."""
    tenants: TenantView
    steps: StepView
    frontends: FrontendView
    worker: WorkerView
    build_seconds: float = 0.0
