"""The engine core: a state machine without sockets, clock, threads or randomness.

Events come in through the methods below, each with the time; `step` hands out what is to be sent.
The same calls give the same effects, always: nothing here iterates over a hash-ordered set.
"""

from __future__ import annotations

import math
from itertools import chain, islice

from penstock.process import logs
from penstock.protocol.from_frontend import FromFrontend, MediaChunk
from penstock.protocol.from_worker import FromWorker
from penstock.protocol.to_worker import SaveKV
from penstock_engine.audit import check as audit
from penstock_engine.core_state import CoreState, make_core_state
from penstock_engine.facts import EngineFacts
from penstock_engine.handlers.disk_kv import Prefetcher
from penstock_engine.handlers.finisher import Finisher
from penstock_engine.handlers.from_frontends import FromFrontends
from penstock_engine.handlers.from_workers import FromWorkers
from penstock_engine.handlers.idle import IdleSleep
from penstock_engine.handlers.status_report import StatusReport
from penstock_engine.parts import HasDeadline, Restless
from penstock_engine.scheduler.pipeline import make_scheduler
from penstock_engine.sessions.effects import Effects

log = logs.get(__name__)

MAX_INTERNAL_ERRORS = 3
"""Internal errors with no settled step between them, after which the core gives up."""

MAX_SAVED_AGAIN = 32_768
"""Most blocks that are stored once more when running requests are handed over."""

IDLE_AUDIT_INTERVAL = 10.0
"""Seconds between audits of the pool; one of a million blocks takes some 30 ms."""


class EngineCore:
    """One model replica.

    A turn is a batch of events and the `step` after it. In a whole turn each part does what is due
    or has become possible. Most turns of a busy core bring nothing but the tokens of sequences that
    go on: those settle a step and plan the next, and other parts are asked only for what the plan
    has found to be missing, until the next deadline, which is at most a beat away, when a Status is
    due.

    The requests (prompt, emitted tokens, parameters) are the truth; slots, blocks and plans are
    derived from them and can be built again at any time, as they are when a worker dies.
    """

    def __init__(self, facts: EngineFacts) -> None:
        self.state = make_core_state(facts)
        self.scheduler = make_scheduler(self.state.scheduling, facts)
        finisher = Finisher(self.state)
        self._from_frontends = FromFrontends(self.state, finisher, after_error=self._audit)
        self._prefetcher = Prefetcher(self.state)
        self._idle = _idle_sleep(self.state)
        self._from_workers = FromWorkers(self.state, finisher, after_error=self._rebuild)
        self._status = StatusReport(self.state)
        self._timed: tuple[HasDeadline, ...] = (
            self._status,
            *self._idle,
            *self.state.timed_parts(),
        )
        self._restless: tuple[Restless, ...] = (*self._idle, *self.state.restless_parts())
        self._disturbed = True
        """Whether something has happened since the last whole turn that isn't only tokens."""
        self._quiet_until = -math.inf
        """The time until which turns that bring nothing but tokens only plan."""
        self.was_quiet = False
        """Whether the last step only planned: neither sleep nor weights can have changed in it."""
        self._asking = tuple(
            getattr(self.state, name) for name in ("adapters", "media") if self.state.has(name)
        )
        self._audited_step = 0
        self._audit_due = 0.0
        self._errors = 0
        self._error_step = 0

    def frontend_opened(self, session: bytes, message: FromFrontend, now: float) -> None:
        self._disturb(now)
        self._from_frontends.opened(session, message)

    def frontend_received(self, session: bytes, message: FromFrontend, now: float) -> None:
        self._disturb(now)
        self._from_frontends.received(session, message, now)

    def frontend_sent_chunk(
        self, session: bytes, message: MediaChunk, data: bytes, now: float
    ) -> None:
        """Some of an item. data: `message.size` bytes, which nothing here depends on."""
        self._disturb(now)
        self._from_frontends.received(session, message, now, data)

    def frontend_ended(self, session: bytes, reason: str, now: float) -> None:
        self._disturb(now)
        self._from_frontends.ended(session, reason)

    def drain(self, now: float) -> None:
        """Begins to drain: from now on only requests that were accepted before are served. Front
        ends are notified."""
        self._disturb(now)
        self.state.drain.begin(now)
        self._status.hasten(now)

    def worker_opened(self, session: bytes, message: FromWorker, now: float) -> None:
        self._disturb(now)
        self._from_workers.opened(session, message)

    def worker_received(self, session: bytes, message: FromWorker, now: float) -> None:
        self.state.clock.now = now
        if not self._from_workers.received(session, message, now):
            self._disturbed = True

    def worker_ended(self, session: bytes, reason: str, now: float) -> None:
        self._disturb(now)
        self._from_workers.ended(session, reason)

    def _disturb(self, now: float) -> None:
        self.state.clock.now = now
        self._disturbed = True

    @property
    def draining(self) -> bool:
        """Whether only what was accepted before is served."""
        return self.state.draining

    def may_leave(self, now: float) -> bool:
        """Whether it was asked to leave, and its peers don't need it any more."""
        return self.state.drain.may_leave(now, has_open=self.has_open_requests)

    @property
    def has_open_requests(self) -> bool:
        """Whether a front end still waits for the end of something."""
        return next(self.state.frontends.awaited(), None) is not None

    @property
    def num_waiting(self) -> int:
        """Sequences that wait, for whatever it is."""
        return self.state.num_waiting

    def step(self, now: float) -> Effects:
        """Plans what steps can be, and returns all that is to be sent.

        Call it after every batch of events, and at `next_deadline` at the latest. Raises
        MemoryError, as all that takes events does: the process must end then.
        """
        self.state.clock.now = now
        self.was_quiet = not self._disturbed and now < self._quiet_until
        if self.was_quiet:
            self.state.service_rate.observe(now, self.state.scheduling.queue)
            self._plan(now)
            self._ask_for_missing(now)
            return self._outgoing(now)
        self._disturbed = False
        self._advance(now)
        effects = self._outgoing(now)
        self._quiet_until = -math.inf if self._is_restless else self._earliest_deadline()
        return effects

    def _advance(self, now: float) -> None:
        """A whole turn: every part that is there has its own."""
        self._from_frontends.expire(now)
        self.state.kv_sessions.expire(now)
        self.state.service_rate.observe(now, self.state.scheduling.queue)
        self._excuse_standstill(now)
        self._from_workers.expire(now)
        for part in self._idle:
            part.advance(now)
        self._from_workers.regroup()
        self._prefetcher.advance(now)
        self._hand_over(now)
        self._advance_audits(now)
        self._call_and_plan(now)
        self._ask_for_missing(now)

    @property
    def _is_restless(self) -> bool:
        """Whether a turn that brings nothing but tokens may have more to do than to plan."""
        return (
            self.state.plans_nothing
            or self.state.workers.failing
            or any(part.is_restless for part in self._restless)
        )

    def _advance_audits(self, now: float) -> None:
        if self.state.audits is not None:
            state = self.state
            taken = state.plans_nothing or state.draining or state.calls.running
            self.state.audits.advance(now, free=not taken)

    def _excuse_standstill(self, now: float) -> None:
        """Counts the workers as making progress while no step is due: with nothing to compute, or
        while the core is paused, they can't be stuck."""
        if not self.state.scheduling.has_work:
            self.state.workers.progressed(now)
            self._audit_when_idle(now)
        elif self.state.stands_still or self.state.calls.running:
            self.state.workers.progressed(now)

    def _outgoing(self, now: float) -> Effects:
        """Returns everything that is to be sent, including the notifications of front ends."""
        self.state.frontends.moved(self.state.scheduling.take_moved())
        frontends = self.state.frontends
        status, due = self._status.take(now, newcomers=frontends.has_newcomers)
        frontends.flush(self.state.effects, status, due=due)
        return self.state.effects.take()

    def next_deadline(self) -> float:
        """The time at which `step` must be called again, even if no message comes."""
        if not self._disturbed and self._quiet_until > -math.inf:
            return self._quiet_until
        return self._earliest_deadline()

    def _earliest_deadline(self) -> float:
        return min([part.next_deadline() for part in self._timed])

    def _hand_over(self, now: float) -> None:
        """Once, while it drains: asks front ends to resubmit their open requests elsewhere, and
        keeps their KV for the engine cores that continue them."""
        if self.state.drain.advance(now, has_open=self.has_open_requests):
            log.info(
                "handing over open requests", open=sum(1 for _ in self.state.frontends.awaited())
            )
            self._save_running()
            self._status.hasten(now)

    def _save_running(self) -> None:
        """Long streams have blocks that were kept for others once, and made room since."""
        scheduling = self.state.scheduling
        if scheduling.cache is not None:
            tables = (s.table.blocks for s in scheduling.running.values() if s.table is not None)
            scheduling.cache.save_again(islice(chain.from_iterable(tables), MAX_SAVED_AGAIN))

    def _call_and_plan(self, now: float) -> None:
        if self.state.workers.failing:
            return
        self.state.calls.advance(now)
        if not self.state.plans_nothing and not self.state.calls.holds_steps():
            scheduling = self.state.scheduling
            scheduling.holds_starts = self.state.weights.holds_starts(scheduling.queue.sequences)
            self._plan(now)
        self.state.calls.planned()

    def _plan(self, now: float) -> None:
        try:
            alone = not self.state.scheduling.in_flight
            while (plan := self.scheduler.plan()) is not None:
                if alone:
                    self.state.workers.progressed(now)  # Nothing stood still before it began.
                alone = False
                self.state.step_clock.planned()
                self.state.workers.send(plan)
            self._save_rest()
        except MemoryError:
            raise  # No sequence's fault: another process may have the memory.
        except Exception:
            log.error("internal error", exception=True, handling="plan")
            self._rebuild()

    def _save_rest(self) -> None:
        """What the last step before a pause has finished: no plan may follow for long."""
        scheduling = self.state.scheduling
        if scheduling.cache is None or scheduling.in_flight:
            return
        saves = scheduling.cache.take_saves()
        if saves:
            self.state.workers.send(SaveKV(saves))

    def _ask_for_missing(self, now: float) -> None:
        """Asks for the items and adapters that the plan has found to be missing. They may be late,
        or wait for room: quiet turns end by then."""
        if self.state.workers.failing:
            return
        for part in self._asking:
            part.advance(now)
            due = -math.inf if part.is_restless else part.next_deadline()
            self._quiet_until = min(self._quiet_until, due)

    def check(self) -> None:
        """Checks the invariants of the whole state, in time linear in its size. Raises
        BrokenState."""
        audit.check(self.state)

    def _audit_when_idle(self, now: float) -> None:
        """The cheap part of the books, once in a while, after something ran."""
        pool, steps = self.state.scheduling.pool, self.state.scheduling.num_steps
        if pool is None or steps == self._audited_step or now < self._audit_due:
            return
        self._audited_step, self._audit_due = steps, now + IDLE_AUDIT_INTERVAL
        if pool.num_used != self._num_fetching or not pool.balances(self._num_fetching):
            log.error("KV blocks are lost", used=pool.num_used, total=pool.num_blocks)
            self._rebuild()

    @property
    def _num_fetching(self) -> int:
        """Returns the number of blocks that no sequence holds, as they are being filled from
        disk."""
        cache = self.state.scheduling.cache
        return 0 if cache is None else cache.num_fetching

    def _audit(self) -> None:
        """Checks the invariants after an internal error outside a step, and starts afresh if they
        are violated."""
        try:
            self.check()
        except MemoryError:
            raise
        except Exception:
            log.error("the core's invariants are violated", exception=True)
            self._rebuild()

    def _rebuild(self) -> None:
        """After an internal error in a step: everything derived is thrown away, with the worker's
        session, and built again from the requests.

        The sequences of a step that failed so are accused as if the worker had died, so one that
        always breaks the core ends.  Books that are broken even then, or one error after another
        with no step settled between them, are raised: the process ends, and a new life begins.
        """
        self._disturbed = True
        settled = self._from_workers.num_settled
        self._errors = self._errors + 1 if settled == self._error_step else 1
        self._error_step = settled
        if self._errors >= MAX_INTERNAL_ERRORS:
            raise RuntimeError(f"{self._errors} internal errors without a step in between")
        self._from_workers.drop("internal error; see the engine core's log")
        self.check()


def _idle_sleep(state: CoreState) -> tuple[IdleSleep, ...]:
    """What puts the model to sleep, if the settings say so."""
    settings = state.facts.config.scheduler
    return (IdleSleep(settings, state),) if settings.idle_sleep_minutes else ()
