"""The state that an engine core shows to its watchers: for people to read, not for decisions.

Everything here is bounded, whatever the engine core holds, and partial lists come with the total
number. No prompt or output is included.
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
"""Most rows, cells and steps in a snapshot."""

SNAPSHOT_INTERVAL = 0.5
"""Least number of seconds between snapshots."""

LONGEST_LEASE = 30.0
"""Most seconds for which a Watch can request snapshots."""

Phase = Literal["prefill", "decode"]


class QueueRow(msgspec.Struct, frozen=True):
    """A waiting sequence."""

    request: str
    """The request's name, as in x-request-id."""
    sequence: int
    tenant: str
    state: str
    """Why it waits."""
    tokens: int
    """Number of the prompt's and the emitted tokens."""
    emitted: int
    age: float
    """Seconds since the request was accepted."""
    priority: int


class QueueView(msgspec.Struct, frozen=True):
    """The waiting sequences. `sequences`, `requests` and `tokens` count all that are in the
    queue."""

    rows: list[QueueRow]
    """Sequences of the queue in the order in which they will run, then those that wait for a
    grammar, for media or for KV blocks from elsewhere."""
    sequences: int
    requests: int
    tokens: int
    grammar: int
    """Sequences that wait for a grammar, which are not in the queue."""
    remote_kv: int
    """Sequences that wait for KV from a store or another engine core, which are not in the
    queue."""
    oldest: float
    """Greatest age among the rows, in seconds."""
    media: int = 0
    """Sequences that wait for media, which are not in the queue."""
    adapters: int = 0
    """Sequences that wait for adapters, which are not in the queue."""


class BatchRow(msgspec.Struct, frozen=True):
    """A sequence in a slot."""

    slot: int
    request: str
    sequence: int
    tenant: str
    phase: Phase
    computed: int
    """Tokens that have KV, by completed steps."""
    tokens: int
    prompt: int
    """Tokens of its prompt."""
    cached: int
    """Prompt tokens that were found in the KV cache."""
    emitted: int
    most: int
    """Tokens that it can grow to by its max_tokens, including the prompt."""
    blocks: int
    """KV blocks that it holds."""
    flying: int
    """Steps in flight that it is in."""
    age: float
    preemptions: int
    drafted: int = 0
    """Tokens that were drafted for it."""
    kept: int = 0
    """Number of `drafted` tokens that were right."""


class BatchView(msgspec.Struct, frozen=True):
    """The sequences in slots."""

    rows: list[BatchRow]
    """Running sequences, in the order in which they started."""
    running: int
    """Number of all of them."""
    slots: int
    """Number of slots that there are."""
    prefilling: int


class BlockView(msgspec.Struct, frozen=True):
    """The KV cache, in blocks. Each block is free, cached, used or shared, which add up to
    `total`."""

    total: int
    block_size: int
    free: int
    """Held by no sequence, and without useful contents."""
    cached: int
    """Held by no sequence, with contents that can be found."""
    used: int
    """Held by one sequence."""
    shared: int
    """Held by several sequences."""
    findable: int
    """Number of blocks with contents that can be found, held or not."""
    span: int
    """Blocks per cell of the map. The last cell may have fewer."""
    map: bytes
    """Three bytes per cell: how many of its blocks are used, shared and cached, scaled to 255 if
    `span` is greater."""
    host_total: int
    """Blocks of the host tier."""
    host_used: int
    swapped_out: int
    """Copies to the host tier."""
    swapped_in: int
    """Copies from the host tier."""


class TenantRow(msgspec.Struct, frozen=True):
    """A tenant with open requests."""

    tenant: str
    """The digest of its API key; empty for requests without one."""
    requests: int
    """Open requests."""
    running: int
    """Sequences in slots."""
    tokens: int
    """Tokens computed for it in the steps shown."""
    weight: int | None = None
    """Weight of its share; None unless the policy is `fair`."""
    debt: float | None = None
    """Tokens generated for it (or what costs as much), beyond those of the tenant that got the
    least, in proportion to their weights; None unless the policy is `fair`."""


class TenantView(msgspec.Struct, frozen=True):
    """The tenants with open requests."""

    rows: list[TenantRow]
    """The tenants with the most open requests."""
    total: int
    """Number of all of them."""
    policy: str


class StepRow(msgspec.Struct, frozen=True, array_like=True):
    """A completed step."""

    number: int
    seconds: float
    """Seconds since it was sent, or since the step before it was completed if that was later."""
    compute: float
    """The part of `seconds` that the worker computed."""
    prefill: int
    """Prefill tokens computed."""
    decode: int
    """Decode tokens computed."""
    sequences: int
    """Sequences in the step."""
    drafted: int = 0
    """Drafted tokens computed."""
    kept: int = 0
    """Number of `drafted` tokens that were right."""


class StepView(msgspec.Struct, frozen=True):
    """The latest steps."""

    rows: list[StepRow]
    """The steps that were completed while somebody watched, oldest first."""
    total: int
    """Steps completed since boot."""
    in_flight: int
    """Steps that were sent and are not completed."""
    preemptions: int
    tokens_computed: int
    tokens_generated: int
    drafted: int = 0
    """Drafted tokens computed since boot."""
    kept: int = 0
    """Number of `drafted` tokens that were right."""


class FrontendRow(msgspec.Struct, frozen=True):
    """A front end's session."""

    name: str
    requests: int
    """Open requests."""
    age: float
    """Age of the session, in seconds."""


class FrontendView(msgspec.Struct, frozen=True):
    """The front ends' sessions."""

    rows: list[FrontendRow]
    """The oldest sessions."""
    total: int


class WorkerView(msgspec.Struct, frozen=True):
    """The worker. `device` and `fingerprint` are those that it reported, and empty if none is
    ready."""

    ready: bool
    reason: str
    device: str
    fingerprint: str
    lost: int
    """Worker sessions that have ended since boot."""


class Snapshot(msgspec.Struct, frozen=True, tag="snapshot", kw_only=True):
    """The engine core at one moment. Sent every SNAPSHOT_INTERVAL seconds to all that have sent
    Watch."""

    boot: str
    model: str
    uptime: float
    """Seconds."""
    draining: bool
    queue: QueueView
    batch: BatchView
    blocks: BlockView | None
    """The KV blocks; None without a worker."""
    tenants: TenantView
    steps: StepView
    frontends: FrontendView
    worker: WorkerView
    build_seconds: float = 0.0
    """Time that it took to make this snapshot."""
