"""The engine core: a state machine without sockets, clock, threads or randomness.

Events come in through the methods below, each with the time; `step` hands out what is to be sent.
The same calls give the same effects, always: nothing here iterates over a hash-ordered set.
"""

from __future__ import annotations

from penstock import logs
from penstock.errors import InvalidRequest
from penstock.protocol.common import TokenLogprobs
from penstock.protocol.from_frontend import Abort, Finish, FromFrontend, Hello, Submit
from penstock.protocol.from_worker import (
    Fault,
    FromWorker,
    Progress,
    Ready,
    Result,
    WorkerHello,
)
from penstock.protocol.to_frontend import Accepted, Rejected, SequenceOutput, Status
from penstock_engine import audit
from penstock_engine.draft import UnfitResult
from penstock_engine.effects import Effects
from penstock_engine.facts import EngineFacts, agree, disagreement
from penstock_engine.frontends import MAX_FRONTENDS, Frontends, FrontendSession
from penstock_engine.kv.pool import MAX_BLOCKS
from penstock_engine.policies.admission import QueueBounds, ServiceRate
from penstock_engine.request import FINISH_REASONS, Request, Sequence, State
from penstock_engine.scheduler import Scheduler
from penstock_engine.stopping import verdict
from penstock_engine.validation import check_submit
from penstock_engine.workers import Workers, WorkerSession

log = logs.get(__name__)

MAX_DEATHS = 2
"""Engines or workers that may die while a request runs; it isn't run again after that."""

POISON = (
    f"an engine or worker died {MAX_DEATHS} times while this request was running; "
    "it is not run again"
)

MAX_INTERNAL_ERRORS = 3
"""Internal errors in a row, with no settled step between them, after which the core gives up."""


class EngineCore:
    """One model replica.

    The requests (prompt, emitted tokens, parameters) are the truth; slots, blocks and plans are
    derived from them and can be built again at any time, as they are when a worker dies.
    """

    def __init__(self, facts: EngineFacts) -> None:
        self.facts = facts
        config = facts.config
        self.scheduler = Scheduler(config.scheduler, config.cache.kv_block_size)
        self.frontends = Frontends()
        self.workers = Workers()
        self._bounds = QueueBounds(config.scheduler)
        self._rate = ServiceRate()
        self._max_len = facts.max_model_len
        self._vocab_size = facts.model.config.vocab_size
        self._arrivals = 0
        self._effects = Effects()
        self._status_due = 0.0
        self._last_health: tuple[bool, str] | None = None
        self._internal_errors = 0

    # ---- front ends

    def frontend_opened(self, session: bytes, message: FromFrontend, now: float) -> None:
        """A session's first message. Answered by a Welcome, or the session is ended."""
        if not isinstance(message, Hello):
            self._refuse_frontend(session, "the first message must be Hello")
            return
        version = agree(message.versions)
        if version is None:
            self._refuse_frontend(session, disagreement(message.versions))
            return
        if len(self.frontends) >= MAX_FRONTENDS:
            self._refuse_frontend(session, f"{MAX_FRONTENDS} front ends are connected already")
            return
        frontend = self.frontends.open(session, message.name)
        frames = (self.facts.tokenizer, self.facts.template)
        frontend.reply(self.facts.welcome(version, self._max_len), frames)
        self._status_due = now
        log.info("front end connected", name=message.name, pid=message.pid)

    def frontend_received(self, session: bytes, message: FromFrontend, now: float) -> None:
        """A later message. One that can't be handled ends its session, and nothing else."""
        frontend = self.frontends.get(session)
        if frontend is None:
            return  # We have ended it; the peer didn't know yet.
        try:
            match message:
                case Submit():
                    self._submit(frontend, message, now)
                case Finish():
                    self._finish(frontend, message)
                case Abort():
                    self._abort(frontend, message)
                case Hello():
                    self._refuse_frontend(session, "Hello came twice")
        except Exception:
            log.error("internal error", exception=True, handling=type(message).__name__)
            self._refuse_frontend(session, "internal error: see the engine's log")
            self._after_internal_error()

    def frontend_ended(self, session: bytes, reason: str, now: float) -> None:
        """The session is over: its requests are nobody's."""
        frontend = self.frontends.get(session)
        if frontend is None:
            return
        log.info("front end left", name=frontend.name, reason=reason, open=len(frontend.requests))
        for request in frontend.requests.values():
            for sequence in request.sequences.values():
                if not sequence.finished:
                    self.scheduler.finish(sequence, State.FINISHED_ABORTED)
        self.frontends.close(session)

    def _refuse_frontend(self, session: bytes, reason: str) -> None:
        self.frontend_ended(session, reason, 0.0)
        self._effects.end_frontends.append((session, reason))

    def _submit(self, frontend: FrontendSession, submit: Submit, now: float) -> None:
        try:
            self._validate(frontend, submit)
        except InvalidRequest as error:
            frontend.reply(Rejected(submit.request, "invalid", error.message))
            return
        if self.workers.final:
            message = f"the model can't be served: {self.workers.fault}"
            frontend.reply(Rejected(submit.request, "unavailable", message, 60_000))
            return
        resumed = submit.deaths > 0 or any(opened.emitted for opened in submit.sequences)
        queue = self.scheduler.queue
        refusal = self._bounds.refusal(queue, len(submit.sequences), len(submit.prompt))
        if refusal is not None and not resumed:
            wait = round(1000 * self._rate.retry_after(now, queue))
            frontend.reply(Rejected(submit.request, "overloaded", refusal, wait))
            return
        self._accept(frontend, submit)

    def _validate(self, frontend: FrontendSession, submit: Submit) -> None:
        if submit.request in frontend.requests:
            raise InvalidRequest(f"request {submit.request} is open already in this session")
        check_submit(
            submit,
            vocab_size=self._vocab_size,
            max_len=self._max_len,
            room=self._room(),
        )

    def _room(self) -> str:
        pool = self.scheduler.pool
        if pool is None or self._max_len == self.facts.max_model_len:
            return "the model's context is"
        size = self.scheduler.block_size
        return f"the whole KV pool ({pool.num_blocks} blocks of {size} tokens) holds"

    def _accept(self, frontend: FrontendSession, submit: Submit) -> None:
        self._arrivals += 1
        request = Request(
            frontend.session,
            submit,
            arrival=self._arrivals,
            eos_token_ids=self.facts.model.generation.eos_token_ids,
        )
        frontend.requests[submit.request] = request
        frontend.reply(Accepted(submit.request))
        for sequence in request.sequences.values():
            # It may have nothing to do: max_tokens 0, or all of its tokens emitted before.
            end = verdict(sequence, self._max_len)
            if sequence.deaths >= MAX_DEATHS:
                self._end(sequence, State.FINISHED_FAILED, error=POISON)
            elif end is not None:
                self._end(sequence, end[0], stop_token=end[1])
            else:
                self.scheduler.add(sequence)

    def _finish(self, frontend: FrontendSession, finish: Finish) -> None:
        request = frontend.requests.get(finish.request)
        sequence = request.sequences.get(finish.sequence) if request is not None else None
        if sequence is not None and not sequence.finished:
            self._end(sequence, State.FINISHED_STOPPED)

    def _abort(self, frontend: FrontendSession, abort: Abort) -> None:
        request = frontend.requests.get(abort.request)
        if request is not None:
            self._end_all(request, State.FINISHED_ABORTED)

    # ---- workers

    def worker_opened(self, session: bytes, message: FromWorker, now: float) -> None:
        """A session's first message. Answered by Setup, or the session is ended."""
        if not isinstance(message, WorkerHello):
            self._effects.end_workers.append((session, "the first message must be WorkerHello"))
            return
        version = agree(message.versions)
        if version is None or message.rank != 0:
            reason = (
                disagreement(message.versions)
                if version is None
                else f"this engine has one worker, rank 0; there is no place for {message.rank}"
            )
            self._effects.end_workers.append((session, reason))
            return
        if self.workers.current is not None:
            self._drop_worker("another worker of the same rank took its place")
        self.workers.current = WorkerSession(session, message.rank)
        self._effects.to_workers.append((session, self.facts.setup(version), ()))
        log.info("worker connected", rank=message.rank, pid=message.pid)

    def worker_received(self, session: bytes, message: FromWorker, now: float) -> None:
        """A later message; one that doesn't fit ends the session."""
        worker = self.workers.current
        if worker is None or worker.session != session:
            return
        match message:
            case Result() if worker.ready is not None:
                self._take_result(message, now)
            case Progress() if worker.ready is not None:
                self.workers.take_progress(worker, message, now)
            case Ready() if worker.ready is None:
                self._take_ready(worker, message, now)
            case Fault():
                self._take_fault(message)
            case _:
                self._drop_worker(f"{type(message).__name__} came out of turn")

    def worker_ended(self, session: bytes, reason: str, now: float) -> None:
        """The worker is gone: what ran waits again, with what it has emitted."""
        if self.workers.current is not None and self.workers.current.session == session:
            self._lose_worker(reason)

    def _drop_worker(self, reason: str) -> None:
        """Ends the worker's session from this side."""
        if self.workers.current is not None:
            self._effects.end_workers.append((self.workers.current.session, reason))
            self._lose_worker(reason)

    def _lose_worker(self, reason: str) -> None:
        log.warning("worker lost", reason=reason, running=len(self.scheduler.running))
        self.workers.current = None
        self._max_len = self.facts.max_model_len
        for sequence in self.scheduler.detach():
            if sequence.deaths >= MAX_DEATHS:
                self._end(sequence, State.FINISHED_FAILED, error=POISON)

    def _take_ready(self, worker: WorkerSession, ready: Ready, now: float) -> None:
        if not 1 <= ready.num_kv_blocks <= MAX_BLOCKS:
            self._drop_worker(f"a pool has 1 to {MAX_BLOCKS} KV blocks, not {ready.num_kv_blocks}")
            return
        self.scheduler.attach(ready.num_kv_blocks)
        self.workers.found_ready(worker, ready, now)
        capacity = ready.num_kv_blocks * self.scheduler.block_size
        self._max_len = min(self.facts.max_model_len, capacity)
        log.info(
            "worker ready",
            device=ready.device,
            kv_blocks=ready.num_kv_blocks,
            max_model_len=self._max_len,
            load_seconds=ready.load_seconds,
        )
        for sequence in self.scheduler.queue.sequences():
            if sequence.num_tokens >= self._max_len:
                error = f"the sequence has {sequence.num_tokens} tokens; {self._room()} "
                error += f"{self._max_len}, the next token included"
                self._end(sequence, State.FINISHED_FAILED, error=error)

    def _take_fault(self, fault: Fault) -> None:
        log.error("worker fault", message=fault.message, final=fault.final)
        self._drop_worker("its fault was heard")
        self.workers.fault = f"the worker failed: {fault.message}"
        self.workers.final = fault.final
        if fault.final:
            for request in list(self.frontends.requests()):
                self._end_all(request, State.FINISHED_FAILED, error=self.workers.fault)

    def _take_result(self, result: Result, now: float) -> None:
        try:
            self.scheduler.verify(result, self._vocab_size)
            self._advance(result)
        except UnfitResult as error:
            self._drop_worker(str(error))
            return
        except Exception:
            log.error("internal error", exception=True, handling="Result")
            self._rebuild()
            return
        self._internal_errors = 0
        self.workers.progressed(now)

    def _advance(self, result: Result) -> None:
        """Hands out what a step gave, sequence by sequence, and ends those that have ended."""
        for sequence, outcome in self.scheduler.apply(result):
            token = outcome.token
            if token is None:
                self._end(sequence, State.FINISHED_FAILED, error=outcome.error)
                continue
            logprobs = None if outcome.logprobs is None else [outcome.logprobs]
            end = verdict(sequence, self._max_len)
            sequence.delivered = len(sequence.emitted)
            if end is not None:
                self._end(sequence, end[0], tokens=[token], logprobs=logprobs, stop_token=end[1])
                continue
            request = sequence.request
            frontend = self.frontends.get(request.session)
            if frontend is not None:
                frontend.outputs.append(
                    SequenceOutput(request.number, sequence.index, [token], logprobs)
                )

    # ---- the ends of sequences

    def _end(
        self,
        sequence: Sequence,
        state: State,
        *,
        tokens: list[int] | None = None,
        logprobs: list[TokenLogprobs] | None = None,
        stop_token: int | None = None,
        error: str | None = None,
    ) -> None:
        """Ends a live sequence and gives out its one terminal output."""
        self.scheduler.finish(sequence, state)
        request = sequence.request
        request.open -= 1
        frontend = self.frontends.get(request.session)
        if frontend is None:
            return
        if not request.open:
            del frontend.requests[request.number]
        frontend.outputs.append(
            SequenceOutput(
                request.number,
                sequence.index,
                tokens or [],
                logprobs,
                FINISH_REASONS[state],
                stop_token,
                error,
            )
        )

    def _end_all(self, request: Request, state: State, *, error: str | None = None) -> None:
        for sequence in request.sequences.values():
            if not sequence.finished:
                self._end(sequence, state, error=error)

    # ---- time

    def step(self, now: float) -> Effects:
        """Plans the next step where one can be, and returns all that is to be sent.

        Call it after every batch of events, and at `next_deadline` at the latest.
        """
        self._rate.observe(now, self.scheduler.queue)
        if not self.scheduler.has_work:
            self.workers.progressed(now)
        self._plan()
        health = self.workers.health(now)
        status = None
        if now >= self._status_due or health != self._last_health:
            status = self._status(health)
            self._last_health = health
            self._status_due = now + self.facts.config.transport.beat_interval
        self.frontends.flush(self._effects, status)
        effects, self._effects = self._effects, Effects()
        return effects

    def next_deadline(self) -> float:
        """When `step` must be called again, even if nothing happens."""
        return self._status_due

    def _plan(self) -> None:
        try:
            plan = self.scheduler.plan()
        except Exception:
            log.error("internal error", exception=True, handling="plan")
            self._rebuild()
            return
        if plan is not None and self.workers.current is not None:
            self._effects.to_workers.append((self.workers.current.session, plan, ()))

    def _status(self, health: tuple[bool, str]) -> Status:
        scheduler, ready = self.scheduler, self.workers.ready
        pool = scheduler.pool
        return Status(
            ready=health[0],
            reason=health[1],
            fingerprint=None if ready is None else ready.fingerprint,
            waiting=scheduler.queue.num_sequences,
            running=len(scheduler.running),
            blocks_total=0 if pool is None else pool.num_blocks,
            blocks_free=0 if pool is None else pool.num_free,
            block_size=scheduler.block_size,
            steps=scheduler.num_steps,
            preemptions=scheduler.num_preemptions,
            frontends=len(self.frontends),
            workers=0 if ready is None else 1,
        )

    # ---- internal errors

    def check(self) -> None:
        """Proves all books. Raises BrokenBooks."""
        audit.check(self.scheduler)
        audit.check_requests(self.scheduler, self.frontends.requests())

    def _rebuild(self) -> None:
        """After an internal error in a step: everything derived is thrown away, with the worker's
        session, and built again from the requests.

        A step that always fails would go on for ever: its sequences are accused as if the worker
        had died, and several errors in a row end the process, which begins a new life.
        """
        self._internal_errors += 1
        if self._internal_errors >= MAX_INTERNAL_ERRORS:
            raise RuntimeError(f"{self._internal_errors} internal errors in a row")
        self._drop_worker("internal error: see the engine's log")
        self.check()

    def _after_internal_error(self) -> None:
        """After an internal error elsewhere: nothing is thrown away where the books balance."""
        try:
            self.check()
        except Exception:
            log.error("the books are broken", exception=True)
            self._rebuild()
