"""What workers say, and what it does."""

from __future__ import annotations

from collections.abc import Callable

from penstock import logs
from penstock.protocol.common import ErrorCode
from penstock.protocol.from_worker import (
    Fault,
    FromWorker,
    GrammarFailed,
    GrammarReady,
    Progress,
    Ready,
    Result,
    WorkerHello,
)
from penstock.protocol.to_frontend import Prepared, SequenceOutput
from penstock_engine.context import ContextLimit
from penstock_engine.draft import UnfitResult
from penstock_engine.effects import Effects
from penstock_engine.endings import Endings
from penstock_engine.facts import EngineFacts, agree, disagreement
from penstock_engine.frontends import Frontends
from penstock_engine.grammars import MAX_DEATHS, Grammars
from penstock_engine.kv.pool import MAX_BLOCKS
from penstock_engine.metrics.counts import Counts
from penstock_engine.pooling import verify_vectors
from penstock_engine.remote_kv import RemoteKV
from penstock_engine.request import Request, Sequence, State
from penstock_engine.scheduler import Scheduler
from penstock_engine.stopping import verdict
from penstock_engine.timeline import Clock
from penstock_engine.workers import Workers, WorkerSession

log = logs.get(__name__)


class FromWorkers:
    """Handles the events of the worker's session.

    num_settled: results applied without an error.  after_error: called when there was one.
    """

    def __init__(
        self,
        facts: EngineFacts,
        scheduler: Scheduler,
        frontends: Frontends,
        workers: Workers,
        grammars: Grammars,
        remote_kv: RemoteKV,
        counts: Counts,
        effects: Effects,
        clock: Clock,
        after_error: Callable[[], None],
    ) -> None:
        self.num_settled = 0
        self._facts = facts
        self._pooling = facts.pooling
        self._scheduler = scheduler
        self._frontends = frontends
        self._workers = workers
        self._grammars = grammars
        self._remote_kv = remote_kv
        self._counts = counts
        self._effects = effects
        self._clock = clock
        self._after_error = after_error
        self._endings = Endings(scheduler, frontends, grammars, remote_kv, counts)
        self._context = ContextLimit(facts, scheduler)

    def opened(self, session: bytes, message: FromWorker) -> None:
        """A first message. Answered by Setup, or the session is ended."""
        version, reason = None, "the first message must be WorkerHello"
        if isinstance(message, WorkerHello):
            version, reason = agree(message.versions), disagreement(message.versions)
            if message.rank != 0:
                version = None
                reason = f"this engine has one worker, rank 0; there is no place for {message.rank}"
        if version is None or not isinstance(message, WorkerHello):
            self._effects.end_workers.append((session, reason))
            return
        self.drop("another worker of the same rank took its place")
        self._workers.current = WorkerSession(session, message.rank)
        self._effects.to_workers.append((session, self._facts.setup(version), ()))
        log.info("worker connected", rank=message.rank, pid=message.pid)

    def received(self, session: bytes, message: FromWorker, now: float) -> None:
        """A later message; one that doesn't fit ends the session."""
        worker = self._workers.current
        if worker is None or worker.session != session:
            return
        match message:
            case Result() if worker.ready is not None:
                self._take_result(message, now)
            case GrammarReady() if worker.ready is not None:
                self._grammar_ready(message.grammar)
            case GrammarFailed() if worker.ready is not None:
                waiting = self._grammars.failed(message.grammar)
                self._fail(waiting, message.reason, "invalid_grammar")
            case Progress() if worker.ready is not None:
                self._workers.take_progress(worker, message, now)
            case Ready() if worker.ready is None:
                self._take_ready(worker, message, now)
            case Fault():
                self._take_fault(message)
            case _:
                self.drop(f"{type(message).__name__} came out of turn")

    def ended(self, session: bytes, reason: str) -> None:
        """The session is over."""
        if self._workers.current is not None and self._workers.current.session == session:
            self._lose(reason)

    def drop(self, reason: str) -> None:
        """Ends the present session, if there is one, from this side."""
        if self._workers.current is not None:
            self._effects.end_workers.append((self._workers.current.session, reason))
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        """What ran waits again, with what it has emitted; a step in flight is forgotten."""
        log.warning("worker lost", reason=reason, running=len(self._scheduler.running))
        self._workers.current = None
        self._clock.forget()
        self._counts.lost(self._clock.now)
        if self._scheduler.cache is not None:
            self._counts.swapped_out += self._scheduler.cache.num_swapped_out
            self._counts.swapped_in += self._scheduler.cache.num_swapped_in
        for sequence in self._scheduler.detach():
            self._endings.end_if_poison(sequence)
        for entry in self._grammars.worker_lost():
            reason = f"{MAX_DEATHS} workers died while they compiled the grammar"
            self._fail(list(entry.waiting), reason, "complex_grammar")

    def _take_ready(self, worker: WorkerSession, ready: Ready, now: float) -> None:
        if not 1 <= ready.num_kv_blocks <= MAX_BLOCKS:
            self.drop(f"a pool has 1 to {MAX_BLOCKS} KV blocks, not {ready.num_kv_blocks}")
            return
        if not 0 <= ready.num_host_blocks <= MAX_BLOCKS:
            self.drop(f"a host tier has 0 to {MAX_BLOCKS} blocks, not {ready.num_host_blocks}")
            return
        self._scheduler.attach(ready.num_kv_blocks, ready.num_host_blocks, ready.copy_seconds)
        self._workers.found_ready(worker, ready, now)
        limit = self._context.tokens
        log.info(
            "worker ready",
            device=ready.device,
            kv_blocks=ready.num_kv_blocks,
            max_model_len=min(limit, self._facts.max_model_len),
            load_seconds=ready.load_seconds,
        )
        parked = [*self._grammars.parked(), *self._remote_kv.parked()]
        for sequence in [*self._scheduler.queue.sequences(), *parked]:
            if sequence.num_tokens >= limit:
                error = (
                    f"the sequence has {sequence.num_tokens} tokens and needs room for one more; "
                    f"{self._context.words} {limit}"
                )
                self._endings.end(sequence, State.FINISHED_FAILED, error=error)
        if not self._scheduler.has_work:
            self._counts.recovered(now)

    def compile_grammars(self, now: float) -> None:
        """Has wanted grammars compiled, and gives up those that take too long."""
        while (entry := self._grammars.overdue(now)) is not None:
            seconds = self._facts.config.grammar.grammar_compile_timeout
            reason = f"the grammar could not be compiled within {seconds:g} s"
            self._fail(list(entry.waiting), reason, "complex_grammar")
        self._grammars.send_wanted(now)

    def _grammar_ready(self, number: int) -> None:
        told: dict[Request, None] = {}
        for sequence in self._grammars.ready(number):
            told[sequence.request] = None
            self._scheduler.add(sequence)
        for request in told:
            frontend = self._frontends.get(request.session)
            if frontend is not None:
                frontend.reply(Prepared(request.number))

    def _fail(self, sequences: list[Sequence], error: str, code: ErrorCode) -> None:
        for sequence in sequences:
            self._endings.end(sequence, State.FINISHED_FAILED, error=error, error_code=code)

    def _take_fault(self, fault: Fault) -> None:
        log.error("worker fault", message=fault.message, final=fault.final)
        self.drop("its fault was heard")
        self._workers.fault = f"the worker failed: {fault.message}"
        self._workers.final = fault.final
        if fault.final:
            # Nobody will ever serve these.
            for request in list(self._frontends.requests()):
                self._endings.end_all(request, State.FINISHED_FAILED, error=self._workers.fault)

    def _take_result(self, result: Result, now: float) -> None:
        try:
            step = self._scheduler.verify(result, self._facts.model.config.vocab_size)
            if self._pooling is not None:
                verify_vectors(step, result, self._pooling)
            whole = self._clock.settled(step, result.compute_seconds)
            self._advance(result)
        except UnfitResult as error:
            self.drop(str(error))
        except Exception:
            log.error("internal error", exception=True, handling="Result")
            self._after_error()
        else:
            self.num_settled += 1
            self._workers.compute_seconds += result.compute_seconds
            self._workers.tokens_computed += step.tokens
            self._workers.progressed(now)
            self._counts.settled(step.tokens, len(step.items), whole, result.compute_seconds)
            self._counts.recovered(now)

    def _advance(self, result: Result) -> None:
        """Hands out what a step gave, sequence by sequence, and ends those that have ended."""
        limit = self._context.tokens
        end_sequence = self._endings.end
        for sequence, outcome in self._scheduler.apply(result):
            if outcome.error is not None:
                error, code = outcome.error, outcome.error_code
                end_sequence(sequence, State.FINISHED_FAILED, error=error, error_code=code)
                continue
            tokens = [] if outcome.token is None else [outcome.token]
            self._workers.tokens_generated += len(tokens)
            logprobs = None if outcome.logprobs is None else [outcome.logprobs]
            prompt = outcome.prompt_logprobs
            end = verdict(sequence, limit)
            if end is not None:
                end_sequence(
                    sequence,
                    end[0],
                    tokens=tokens,
                    logprobs=logprobs,
                    stop_token=end[1],
                    prompt_logprobs=prompt,
                    vectors=outcome.vectors,
                )
                continue
            request = sequence.request
            frontend = self._frontends.get(request.session)
            if frontend is not None:
                output = SequenceOutput(
                    request.number,
                    sequence.index,
                    tokens,
                    logprobs,
                    cached_tokens=request.take_cached_tokens(),
                    prompt_logprobs=prompt,
                )
                frontend.outputs.append(output)
            sequence.delivered = len(sequence.emitted)
