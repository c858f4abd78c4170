"""Handles the loss of a group of workers: what becomes of requests, grammars, media and KV
blocks."""

from __future__ import annotations

import enum

from penstock.process import logs
from penstock_engine.core_state import CoreState
from penstock_engine.handlers.adapters import AdapterHandler
from penstock_engine.handlers.disk_kv import DiskKVHandler
from penstock_engine.handlers.finisher import Finisher
from penstock_engine.handlers.grammars import GrammarHandler
from penstock_engine.handlers.weights import WeightsHandler
from penstock_engine.request.request import Sequence
from penstock_engine.sessions.fault_attribution import (
    MAX_DEATHS,
    FaultAttribution,
    Suspect,
)
from penstock_engine.sessions.ranks import WorkerSession
from penstock_engine.waiting.adapter_entry import AdapterEntry
from penstock_engine.waiting.grammar_entry import GrammarEntry

log = logs.get(__name__)


class LossCause(enum.Enum):
    """The cause to which the loss of a group is attributed."""

    SCHEDULED = "what was running"
    UNKNOWN = "known once its workers are back"
    NOT_A_FAULT = "nobody's"
    WANTED = "what a front end asked for"


class GroupLosses:
    """Ends groups, and blames for their loss whom it is to be attributed to."""

    def __init__(self, state: CoreState, finisher: Finisher) -> None:
        self._ranks = state.workers.ranks
        self._state = state
        self._finisher = finisher
        self._attribution = FaultAttribution()
        self._grammars = GrammarHandler(state, finisher)
        self._adapters = AdapterHandler(state, finisher)
        self._disk_kv = DiskKVHandler(state)
        self._weights = WeightsHandler(state)

    def arrived(self, rank: int, life: str) -> None:
        """A worker has come; which life of its rank it is may say who was to blame before."""
        for suspect in self._attribution.arrived(rank, life):
            self._end_if_poison(suspect)

    def end(
        self, worker: WorkerSession, reason: str, cause: LossCause = LossCause.SCHEDULED
    ) -> None:
        """Ends a worker's session from this side, and with it its group."""
        if self._ranks.formed:
            self.drop(reason, cause)
        else:
            self._state.effects.end_workers.append((worker.session, reason))
            self._ranks.leave(worker)

    def drop(self, reason: str, cause: LossCause = LossCause.SCHEDULED) -> None:
        """Ends the present group, if there is one, from this side."""
        if self._ranks.formed:
            self.lose(list(self._ranks.formed), reason, cause)

    def regroup(self) -> None:
        """Ends a group that is awake and should sleep, or the other way round, or that should have
        other weights, once no step is in flight and no call runs. Its ranks come back at once and
        are set up as wanted."""
        sleep = self._state.sleep
        if self._state.scheduling.in_flight or self._state.calls.running:
            return
        if self._state.weights.due:
            if not sleep.level:
                self.drop("new weights are requested", LossCause.WANTED)
            self._weights.begin()
        if sleep.level:
            self._weights.promise()
        if self._ranks.formed and sleep.regroups:
            self.drop(f"sleep level {sleep.level} is requested", LossCause.WANTED)

    def lose(self, sessions: list[bytes], reason: str, cause: LossCause) -> None:
        """The group is over; `sessions` of it are to be ended.

        What ran waits again, with what it has emitted; a step in flight is forgotten.
        """
        if cause is LossCause.WANTED:
            log.info("workers' sessions are renewed", reason=reason)
        else:
            log.warning("worker lost", reason=reason, running=len(self._state.scheduling.running))
            self._state.counts.lost(self._state.clock.now)
        self._state.effects.end_workers += [(session, reason) for session in sessions]
        lives = self._ranks.disband()
        self._state.workers.faults.clear()
        self._state.workers.results.clear()
        self._state.step_clock.forget()
        if self._state.scheduling.cache is not None:
            self._state.counts.swapped_out += self._state.scheduling.cache.num_swapped_out
            self._state.counts.swapped_in += self._state.scheduling.cache.num_swapped_in
        if self._state.audits is not None:
            self._state.audits.worker_lost()
        scheduled = self._state.scheduling.detach()
        self._state.media.worker_lost()
        self._disk_kv.worker_lost()
        self._state.kv_sessions.worker_lost()
        self._state.calls.worker_lost(reason)
        loading = self._state.adapters.worker_lost()
        other_work: list[Suspect] = [*self._state.grammars.worker_lost(), *loading]
        if cause in (LossCause.UNKNOWN, LossCause.SCHEDULED):
            heard = cause is LossCause.SCHEDULED
            self._weights.failed(self._state.workers.fault or reason, heard=heard)
        if cause is LossCause.UNKNOWN:
            self._attribution.suspect(scheduled, other_work, lives)
        elif cause is LossCause.SCHEDULED:
            self._attribution.accuse(scheduled, other_work)
            for suspect in [*scheduled, *other_work]:
                self._end_if_poison(suspect)

    def _end_if_poison(self, suspect: Suspect) -> None:
        if not self._attribution.is_poison(suspect):
            return
        if isinstance(suspect, GrammarEntry):
            error = f"{MAX_DEATHS} workers died while compiling the grammar"
            self._grammars.fail(suspect, error, "complex_grammar")
        elif isinstance(suspect, AdapterEntry):
            self._adapters.poisoned(suspect)
        elif isinstance(suspect, Sequence):
            self._finisher.end_if_poison(suspect)
