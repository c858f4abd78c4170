"""The live view of an engine core: which front ends watch it, and what they are shown.

The core doesn't know of the view, and the view doesn't change the core: Watch is taken before it
comes to the core, so neither decisions nor recordings depend on who watches.  While no front end
does, nothing is noted but when each front end came and how many workers were lost.
"""

from __future__ import annotations

import math
import time
from itertools import islice

from penstock.protocol.from_frontend import FromFrontend, Watch
from penstock.protocol.from_worker import FromWorker, Result
from penstock.protocol.live import (
    LONGEST_LEASE,
    MAX_FRONTEND_ROWS,
    SNAPSHOT_INTERVAL,
    FrontendRow,
    FrontendView,
    Snapshot,
    StepView,
    WorkerView,
)
from penstock_engine.core import EngineCore
from penstock_engine.live.pool_view import StepLog, block_view
from penstock_engine.live.rows import batch_view, queue_view, tenant_view
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
