"""The live view of an engine core: which front ends watch it, and what they are shown.

The core doesn't know of the view, and the view doesn't change the core: Watch is taken before it
comes to the core, so neither decisions nor recordings depend on who watches.  While no front end
does, nothing is noted but when each front end came and how many workers were lost.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from penstock.protocol.from_frontend import FromFrontend, Watch
from penstock.protocol.from_worker import FromWorker, Result
from penstock.protocol.live import (
    LONGEST_LEASE,
    MAX_CELLS,
    MAX_FRONTEND_ROWS,
    MAX_STEPS,
    SNAPSHOT_INTERVAL,
    BlockView,
    FrontendRow,
    FrontendView,
    Snapshot,
    StepRow,
    StepView,
    WorkerView,
)
from penstock.protocol.to_worker import Plan
from penstock_engine.core import EngineCore
from penstock_engine.kv.cache import FINDABLE, KVCache
from penstock_engine.kv.pool import bytes_or
from penstock_engine.live.rows import batch_view, queue_view, tenant_view
from penstock_engine.request.request import Sequence
from penstock_engine.sessions.effects import Effects


class LiveView:
    """Follows a core's inputs and outputs from outside. now: on the core's clock."""

    def __init__(self, core: EngineCore, now: float) -> None:
        self._core = core
        self._born = now
        self._steps = StepLog()
        self._leases: dict[bytes, float] = {}
        """The time until which each session watches."""
        self._opened: dict[bytes, float] = {}
        self._due = math.inf
        self._group: int | None = None
        self._settled: Result | None = None
        self._lost = 0

    def frontend_opened(self, session: bytes, now: float) -> None:
        """A session has begun; the core may have refused it."""
        if self._core.state.frontends.get(session) is not None:
            self._opened[session] = now

    def frontend_ended(self, session: bytes) -> None:
        """Forgets a front end's session and its lease."""
        self._opened.pop(session, None)
        if self._leases.pop(session, None) is not None:
            self._close_when_unwatched()

    def takes(self, session: bytes, message: FromFrontend, now: float) -> bool:
        """Whether a message was for the live view; the core gets all others."""
        if not isinstance(message, Watch):
            return False
        if self._core.state.frontends.get(session) is None:
            return True
        if not message.seconds > 0:
            self._leases.pop(session, None)
            self._close_when_unwatched()
            return True
        if not self._leases:
            self._due = now
        self._leases[session] = now + min(message.seconds, LONGEST_LEASE)
        return True

    def worker_said(self, message: FromWorker, now: float) -> None:
        """A message that the core has handled."""
        if not self._leases or not isinstance(message, Result):
            return
        settled = self._core.state.workers.results.latest
        if settled is not None and settled is not self._settled:
            self._settled = settled
            self._steps.settled(settled, now)

    def delivering(self, effects: Effects, now: float) -> None:
        """What the core wants sent."""
        self._look_at_worker()
        if self._leases:
            for plan in effects.plans():
                self._steps.sent(plan, self._core.state.scheduling.running, now)

    def _look_at_worker(self) -> None:
        workers = self._core.state.workers
        ready = None if workers.ready is None else workers.ranks.number
        if ready != self._group:
            if self._group is not None and not self._core.state.sleep.level:
                self._lost += 1
                self._steps.lost()
            self._group = ready

    def next_due(self) -> float:
        """The time at which `snapshots` has something to return; infinity while no session
        watches."""
        return self._due

    def snapshots(self, now: float) -> tuple[list[bytes], Snapshot] | None:
        """Returns the sessions that are due for a snapshot, and the snapshot; None before
        SNAPSHOT_INTERVAL seconds have passed since the last."""
        if now < self._due:
            return None
        for session in [session for session, until in self._leases.items() if until <= now]:
            del self._leases[session]
        self._close_when_unwatched()
        if not self._leases:
            return None
        self._due = now + SNAPSHOT_INTERVAL
        return list(self._leases), self.snapshot(now)

    def _close_when_unwatched(self) -> None:
        if not self._leases:
            self._due = math.inf
            self._steps.clear()

    def snapshot(self, now: float) -> Snapshot:
        """The core as it is."""
        begun = time.perf_counter()
        core = self._core
        model = core.state.facts.served_name
        cache = core.state.scheduling.cache
        return Snapshot(
            boot=core.state.facts.boot,
            model=model,
            uptime=round(now - self._born, 3),
            draining=core.draining,
            queue=queue_view(core, now),
            batch=batch_view(core, now),
            blocks=None if cache is None else block_view(cache),
            tenants=tenant_view(core, self._steps.tenants),
            steps=self._step_view(),
            frontends=self._frontend_view(now),
            worker=self._worker_view(now),
            build_seconds=round(time.perf_counter() - begun, 6),
        )

    def _step_view(self) -> StepView:
        scheduler, workers = self._core.state.scheduling, self._core.state.workers
        counts = self._core.state.counts
        return StepView(
            rows=self._steps.rows,
            total=scheduler.num_steps,
            in_flight=scheduler.num_in_flight,
            preemptions=scheduler.num_preemptions,
            tokens_computed=workers.tokens_computed,
            tokens_generated=workers.tokens_generated,
            drafted=counts.drafted_tokens,
            kept=counts.kept_tokens,
        )

    def _frontend_view(self, now: float) -> FrontendView:
        frontends = self._core.state.frontends
        rows = [
            FrontendRow(
                name=each.name,
                requests=len(each.requests),
                age=round(now - self._opened.get(each.session, now), 3),
            )
            for each in islice(frontends, MAX_FRONTEND_ROWS)
        ]
        return FrontendView(rows=rows, total=len(frontends))

    def _worker_view(self, now: float) -> WorkerView:
        workers = self._core.state.workers
        ready, (healthy, reason) = workers.ready, workers.health(now)
        return WorkerView(
            ready=healthy,
            reason=reason,
            device="" if ready is None else ready.device,
            fingerprint="" if ready is None else ready.fingerprint,
            lost=self._lost,
        )


# The KV pool as a picture: a state for each block, counted by cells.
#
# No loop of Python's runs over blocks: the states come of a few passes over whole byte strings, and
# each cell is counted by one call for each state.

_FREE, _USED, _SHARED = 0, 1, 2
_CACHED = FINDABLE
_MARKED = (FINDABLE | _FREE, FINDABLE | _USED, FINDABLE | _SHARED)
_FOUND_OR_NOT = bytes([_FREE, _USED, _SHARED, 3, _CACHED, _USED, _SHARED, *range(7, 256)])
"""Maps the classes of blocks to those that are shown: for a block that is held it makes no
difference whether others may find it."""


def block_view(cache: KVCache) -> BlockView:
    """The pool's state now."""
    marked = bytes_or(cache.pool.owner_classes(), cache.findable)
    states = marked.translate(_FOUND_OR_NOT)
    totals = {state: states.count(state) for state in (_FREE, _CACHED, _USED, _SHARED)}
    total = cache.pool.num_blocks
    span = -(-total // MAX_CELLS)
    host = cache.host
    return BlockView(
        total=total,
        block_size=cache.block_size,
        free=totals[_FREE],
        cached=totals[_CACHED],
        used=totals[_USED],
        shared=totals[_SHARED],
        findable=sum(marked.count(mark) for mark in _MARKED),
        span=span,
        map=_map(states, span, totals),
        host_total=0 if host is None else host.num_blocks,
        host_used=0 if host is None else host.num_used,
        swapped_out=cache.num_swapped_out,
        swapped_in=cache.num_swapped_in,
    )


def _map(states: bytes, span: int, totals: dict[int, int]) -> bytes:
    """The map of blocks, three bytes per cell of `span` blocks: see BlockView.map."""
    cells = -(-len(states) // span)
    made = bytearray(3 * cells)
    for place, state in enumerate((_USED, _SHARED, _CACHED)):
        if totals[state]:
            made[place::3] = _counts(states, state, span)
    return bytes(made)


def _counts(states: bytes, state: int, span: int) -> bytes:
    count = states.count
    counts = [count(state, start, start + span) for start in range(0, len(states), span)]
    if span > 255:
        # Rounded up, so that one block of many is still seen.
        counts = [-(-255 * each // span) for each in counts]
    return bytes(counts)


@dataclass(slots=True)
class _Sent:
    """A step in flight. tenants: tokens that it computes for each."""

    number: int
    prefill: int
    decode: int
    sequences: int
    tenants: Counter[str]


class StepLog:
    """rows: of settled steps, oldest first.  tenants: tokens that these have computed for each.

    Called with each plan that is sent and each result, in order; takes a few operations for each of
    a plan's slots.
    """

    def __init__(self) -> None:
        self.tenants: Counter[str] = Counter()
        self._flying: deque[_Sent] = deque()
        self._settled: deque[tuple[StepRow, Counter[str]]] = deque()
        self._begun = 0.0

    @property
    def rows(self) -> list[StepRow]:
        return [row for row, _ in self._settled]

    def sent(self, plan: Plan, running: Mapping[int, Sequence], now: float) -> None:
        """A plan goes to the worker. running: by slot."""
        prefill = decode = 0
        tenants: Counter[str] = Counter()
        for work in plan.work:
            sequence = running.get(work.slot)
            if sequence is None:
                continue
            if work.count == 1 and work.start >= len(sequence.request.prompt_token_ids):
                decode += 1
            else:
                prefill += work.count
            tenants[sequence.request.tenant] += work.count
        if not self._flying:
            self._begun = now
        self._flying.append(_Sent(plan.step, prefill, decode, len(plan.work), tenants))

    def settled(self, result: Result, now: float) -> None:
        """A result has come; of a step that was sent before anybody watched nothing is known."""
        begun, self._begun = self._begun, now
        if not self._flying or self._flying[0].number != result.step:
            return
        step = self._flying.popleft()
        row = StepRow(
            step.number,
            round(now - begun, 6),
            round(result.compute_seconds, 6),
            step.prefill,
            step.decode,
            step.sequences,
            sum(outcome.drafted for outcome in result.slots),
            sum(len(outcome.more) for outcome in result.slots),
        )
        self._settled.append((row, step.tenants))
        self.tenants.update(step.tenants)
        if len(self._settled) > MAX_STEPS:
            self._forget(self._settled.popleft()[1])

    def lost(self) -> None:
        """The worker is gone, and the steps in flight with it."""
        self._flying.clear()

    def clear(self) -> None:
        """Drops everything: nobody watches."""
        self._flying.clear()
        self._settled.clear()
        self.tenants.clear()

    def _forget(self, tenants: Counter[str]) -> None:
        for tenant, tokens in tenants.items():
            self.tenants[tenant] -= tokens
            if not self.tenants[tenant]:
                del self.tenants[tenant]
