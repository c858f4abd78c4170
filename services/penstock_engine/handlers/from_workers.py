"""What workers say, and what it does."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.process import logs
from penstock.protocol.from_worker import (
    AdapterFailed,
    AdapterReady,
    Asleep,
    CallDone,
    CallFailed,
    Fault,
    FetchedKV,
    FoundKV,
    FromWorker,
    GrammarFailed,
    GrammarReady,
    Leaving,
    MediaFailed,
    MediaReady,
    MediaTaken,
    Progress,
    Ready,
    Result,
    WorkerHello,
)
from penstock.protocol.to_worker import RankGroup, Setup, Sleep
from penstock_engine.core_state import CoreState
from penstock_engine.handlers.adapters import AdapterHandler
from penstock_engine.handlers.disk_kv import DiskKVHandler
from penstock_engine.handlers.finisher import Finisher
from penstock_engine.handlers.grammars import GrammarHandler
from penstock_engine.handlers.group_losses import GroupLosses, LossCause
from penstock_engine.handlers.media import MediaHandler
from penstock_engine.handlers.ranges import wrong_ready
from penstock_engine.handlers.results import ResultHandler
from penstock_engine.handlers.weights import WeightsHandler
from penstock_engine.request.states import SequenceState
from penstock_engine.request.step_in_flight import UnfitResult
from penstock_engine.sessions.ranks import Disagreement, WorkerSession
from penstock_engine.sessions.versions import agree, disagreement
from penstock_engine.waiting.disk_kv import UnfitAnswer

log = logs.get(__name__)

HEARD = "it reported a fault"


class FromWorkers:
    """Handles the events of the workers' sessions.

    num_settled: results applied without an error.  after_error: called when there was one.
    """

    def __init__(
        self,
        state: CoreState,
        finisher: Finisher,
        after_error: Callable[[], None],
    ) -> None:
        self.num_settled = 0
        self._ranks = state.workers.ranks
        self._after_error = after_error
        self._state = state
        self._finisher = finisher
        self._losses = GroupLosses(state, finisher)
        self._faults = state.workers.faults
        self._results = ResultHandler(state, finisher)
        self._grammars = GrammarHandler(state, finisher)
        self._media = MediaHandler(state, finisher)
        self._adapters = AdapterHandler(state, finisher)
        self._disk_kv = DiskKVHandler(state)
        self._weights = WeightsHandler(state)
        has_adapters = state.has("adapters")
        adapters = (self._adapters,) if has_adapters else ()
        self._asking = (state.adapters,) if has_adapters else ()
        self._expiring: tuple[WeightsHandler | GrammarHandler | AdapterHandler, ...] = (
            self._weights,
            self._grammars,
            *adapters,
        )

    def opened(self, session: bytes, message: FromWorker) -> None:
        """A first message. Answered by Setup once all ranks are there, or the session is ended."""
        if not isinstance(message, WorkerHello):
            self._state.effects.end_workers.append(
                (session, "the first message must be WorkerHello")
            )
            return
        version, refusal = agree(message.versions), self._ranks.refusal(message)
        if version is None or refusal is not None:
            reason = refusal or disagreement(message.versions)
            self._state.effects.end_workers.append((session, reason))
            return
        before = self._ranks.holder(message.rank)
        if before is not None and before.life != message.life:
            # The holder lives, as far as is known: else its session ends by itself, and soon.
            taken = f"rank {message.rank} is taken by another worker, whose session has not ended"
            self._state.effects.end_workers.append((session, taken))
            return
        if before is not None:
            self._losses.end(before, "it has dialled in again", LossCause.UNKNOWN)
        log.info("worker connected", rank=message.rank, pid=message.pid)
        self._losses.arrived(message.rank, message.life)
        for worker, group in self._ranks.join(WorkerSession(session, message, version)):
            self._state.sleep.formed()
            level = self._state.sleep.level
            first = Sleep(level) if level else self._setup(worker.version, group)
            self._state.effects.to_workers.append((worker.session, first, ()))

    def _setup(self, version: int, group: RankGroup | None) -> Setup:
        setup = self._state.facts.setup(version, group)
        self._state.weights.taken()
        return msgspec.structs.replace(setup, trial=self._state.weights.former is not None)

    def received(self, session: bytes, message: FromWorker, now: float) -> bool:
        """A later message; one that doesn't fit ends the session. Returns whether it has brought
        tokens of sequences that go on, and nothing else."""
        worker = self._ranks.find(session)
        if worker is None:
            return False
        all_ready = self._ranks.ready is not None
        match message:
            case Result() if all_ready:
                return self._take_result(worker, message, now)
            case GrammarReady() if all_ready:
                self._grammars.ready(message.grammar, worker.rank, now)
            case GrammarFailed() if all_ready:
                self._grammars.failed(message, now)
            case MediaTaken() | MediaReady() | MediaFailed() if all_ready:
                self._media.answered(message, worker.rank, now)
            case AdapterReady() | AdapterFailed() if all_ready:
                self._adapters.answered(message, worker.rank, now)
            case FoundKV() | FetchedKV() if all_ready:
                self._take_from_disk(worker, message)
            case CallDone() | CallFailed() if self._state.calls.answered(worker.rank, message):
                self._state.workers.progressed(now)
            case Progress() if all_ready:
                self._state.workers.take_progress(worker, message, now)
            case Asleep() if self._ranks.formed and self._state.sleep.answered(worker.rank):
                log.info("worker sleeps", rank=worker.rank, level=self._state.sleep.group_level)
            case Ready() if self._ranks.formed and worker.ready is None:
                self._take_ready(worker, message, now)
            case Fault():
                self._take_fault(worker, message, now)
            case Leaving():
                self._leaves(worker)
            case _:
                self._losses.end(worker, f"{type(message).__name__} was not expected in this state")
        return False

    def ended(self, session: bytes, reason: str) -> None:
        """The session is over, and with it those of the ranks that it computed with."""
        worker = self._ranks.find(session)
        if worker is None:
            return
        if not self._ranks.formed:
            self._ranks.leave(worker)
            return
        if self._faults.has(worker.rank):
            return  # It has said why; others are waited for.
        others = [one for one in self._ranks.formed if one != session]
        self._losses.lose(others, f"rank {worker.rank} was lost: {reason}", LossCause.UNKNOWN)

    def _leaves(self, worker: WorkerSession) -> None:
        """Handles a worker that shuts down because it was asked to: no sequence is to blame."""
        self.drop(f"rank {worker.rank} is shutting down", LossCause.NOT_A_FAULT)

    def drop(self, reason: str, cause: LossCause = LossCause.SCHEDULED) -> None:
        """Ends the present group, if there is one, from this side."""
        self._losses.drop(reason, cause)

    def regroup(self) -> None:
        """Ends a group that is to sleep, wake or have other weights (see GroupLosses.regroup)."""
        self._losses.regroup()

    def _take_ready(self, worker: WorkerSession, ready: Ready, now: float) -> None:
        wrong = wrong_ready(ready, self._state.facts.block_size)
        if wrong is not None:
            self.drop(wrong)
            return
        try:
            group = self._ranks.loaded(worker, ready)
        except Disagreement as error:
            self.drop(str(error))
            return
        if group is not None:
            self._begin(group, now)

    def _begin(self, ready: Ready, now: float) -> None:
        """Begins to plan steps, once all ranks of the group have loaded the model."""
        self._state.media.attach(
            ready.media_rows,
            ready.media_bytes,
            encoder_rows=ready.encoder_rows,
        )
        host_blocks = ready.num_host_blocks if self._state.uses("host") else 0
        self._state.scheduling.attach(
            ready.num_kv_blocks,
            host_blocks,
            ready.copy_seconds,
            ready.kv_groups,
            whole_spans=ready.whole_spans,
        )
        if self._state.audits is not None:
            invariant = self._state.facts.config.worker.batch_invariant
            self._state.audits.attach(exact=invariant or not ready.device.startswith("cuda"))
        self._state.scheduling.goes_on = ready.goes_on and self._ranks.size == 1
        self._state.disk_kv.attach(has_disk=ready.disk_kv)
        self._state.kv_sessions.has_disk = ready.disk_kv
        self._state.workers.found_ready(now)
        self._state.kept_answers.computed_with(ready.fingerprint)
        self._weights.loaded()
        limit = self._state.context_limit.tokens
        log.info(
            "worker ready",
            device=ready.device,
            ranks=self._ranks.size,
            kv_blocks=ready.num_kv_blocks,
            kv_groups=len(ready.kv_groups),
            max_model_len=min(limit, self._state.facts.max_model_len),
            load_seconds=ready.load_seconds,
        )
        state = self._state
        parked = [*state.grammars.parked(), *state.adapters.parked()]
        for sequence in [*self._state.scheduling.queue.sequences(), *parked]:
            if sequence.num_tokens >= limit:
                error = (
                    f"the sequence has {sequence.num_tokens} tokens and needs space for one more; "
                    f"{self._state.context_limit.words} {limit}"
                )
                self._finisher.end(sequence, SequenceState.FINISHED_FAILED, error=error)
        self._media.end_misfits()
        if not self._state.scheduling.has_work:
            self._state.counts.recovered(now)

    def expire(self, now: float) -> None:
        """Ends the group of a rank that has failed, once the others had time to say why, and one
        that is stuck; has grammars compiled that are wanted, and gives up those that take too
        long."""
        if self._faults.due(now):
            self.drop(HEARD, self._loss_cause())
        elif self._state.scheduling.in_flight and (why := self._state.workers.stuck(now)):
            self.drop(why)
        for handler in self._expiring:
            handler.expire(now)
        if not self._state.workers.failing:
            self._state.grammars.send_wanted(now)
            for part in self._asking:
                part.advance(now)

    def _loss_cause(self) -> LossCause:
        """Cause of the loss of a group some of whose ranks have said that they failed."""
        return LossCause.SCHEDULED if self._faults.own else LossCause.UNKNOWN

    def _take_fault(self, worker: WorkerSession, fault: Fault, now: float) -> None:
        log.error("worker fault", rank=worker.rank, message=fault.message, final=fault.final)
        if not self._state.workers.failing or not fault.rank_lost:
            # That another is gone is no reason, where one is known.
            self._state.workers.fault = f"the worker failed: {fault.message}"
        in_step = self._state.scheduling.num_in_flight > 0
        if fault.out_of_memory and in_step and self._state.scheduling.shrink():
            # The step was too large, whatever it held.
            log.warning("the token budget is reduced", tokens=self._state.scheduling.budget)
            self.drop(HEARD, LossCause.NOT_A_FAULT)
            self._media.end_misfits()
        elif fault.out_of_memory or fault.final or not in_step:
            self._losses.end(worker, HEARD)
        elif self._faults.add(worker.rank, now, own=not fault.rank_lost):
            self.drop(HEARD, self._loss_cause())
        self._state.workers.final = fault.final
        if fault.final:
            # These will never be served.
            for request in list(self._state.frontends.requests()):
                self._finisher.end_all(
                    request, SequenceState.FINISHED_FAILED, error=self._state.workers.fault
                )

    def _take_from_disk(self, worker: WorkerSession, message: FoundKV | FetchedKV) -> None:
        try:
            self._disk_kv.answered(message, worker.rank)
        except UnfitAnswer as error:
            self.drop(str(error))

    def _take_result(self, worker: WorkerSession, result: Result, now: float) -> bool:
        try:
            settled = self._results.take(worker.rank, result, now)
        except UnfitResult as error:
            self.drop(str(error))
        except MemoryError:
            raise
        except Exception:
            log.error("internal error", exception=True, handling="Result")
            self._after_error()
        else:
            self.num_settled += settled
            return self._results.was_quiet
        return False
