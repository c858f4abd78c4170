"""An EngineCore between fake front ends and a fake worker, beside a naive model of it: `scores`."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from penstock.kv_layout import ONE_GROUP, KVGroup, paged, state_of
from penstock.protocol.common import (
    MAX_MEDIA_CHUNK,
    AdapterFile,
    Grammar,
    Grant,
    Media,
    SessionTerms,
    Stopping,
    TokenSampling,
)
from penstock.protocol.from_frontend import (
    Abort,
    Finish,
    FromFrontend,
    Hello,
    MediaChunk,
    MediaFile,
    OpenSequence,
    Submit,
)
from penstock.protocol.from_worker import Asleep, FromWorker, Ready, Result, WorkerHello
from penstock.protocol.to_frontend import (
    Accepted,
    Adapters,
    Called,
    NeedMedia,
    Outputs,
    Prepared,
    Rejected,
    SequenceOutput,
    Status,
    ToFrontend,
    Welcome,
)
from penstock.protocol.to_worker import (
    CompileGrammar,
    DropAdapter,
    DropGrammar,
    DropMedia,
    FetchKV,
    LoadAdapter,
    LoadMedia,
    LoadMediaChunk,
    LookUpKV,
    Plan,
    SaveKV,
    Setup,
    Sleep,
    ToWorker,
    WorkerCall,
)
from penstock_engine.core import EngineCore
from penstock_engine.facts import EngineFacts
from penstock_engine.policies.fair import FairShare
from tests.engine.fake_adapters import FakeAdapters
from tests.engine.fake_disk import FakeDisk
from tests.engine.fake_media import FakeMedia
from tests.engine.fake_worker import FakeWorker, told_of
from tests.engine.salts import Salts
from tests.engine.scores import Front, RequestScore, SequenceScore
from tests.engine.small_facts import facts
from tests.engine.wire import encode, over_the_wire


class Harness:
    """Drives a core; every call checks all books and everything that the core sent."""

    def __init__(self, engine_facts: EngineFacts | None = None, **options: Any) -> None:
        self.facts = engine_facts or facts(**options)
        self.core = EngineCore(self.facts)
        self.now = 100.0
        self.fronts: list[Front] = []
        self.gone: list[Front] = []
        self.worker_session: bytes | None = None
        self.worker_end: str | None = None
        self.worker: FakeWorker | None = None
        self.setup: Setup | None = None
        self.asleep = False
        """Whether the worker was told to sleep."""
        self.digest = ""
        """Of the weights that a worker was told to load last."""
        self.plans: deque[tuple[Plan, list[SequenceScore]]] = deque()
        """Steps in flight, each with what it works on."""
        self.calls: deque[WorkerCall] = deque()
        """Of the worker's extensions, that it has not answered."""
        self.compile_at_once = True
        self.late: Callable[[], bool] = lambda: False
        self.proposes: Callable[[], int] = lambda: 0
        """Tokens that the worker could draft next."""
        self.drafts: Callable[[int], tuple[int, int]] = lambda most: (most, most)
        """How many it drafts of so many at most, and how many of these are right."""
        self.goes_on = False
        """Of workers that become ready."""
        self.disturbed: Callable[[], bool] = lambda: False
        """Whether a worker stops to compute further tokens by itself."""
        self.step_seconds: Callable[[], float] = lambda: 0.0
        """That the worker says a step took; 0: it says nothing of it."""
        self.encode_seconds: Callable[[], float] = lambda: 0.0
        """That it says a step took for its media; 0: likewise."""
        self.kv_groups: tuple[KVGroup, ...] = ONE_GROUP
        """Of workers that become ready."""
        self.media_rows = 0
        self.media_work = 0
        """Of each row that is encoded: see MediaReady."""
        """Of workers that become ready; 0: they take no media."""
        self.encoder_rows = 0
        self.aligns = False
        """Likewise: placeholders with which prompts begin; 0: items stand anywhere."""
        self.media_bytes = 0
        """Likewise: of prepared items that they hold; 0: they don't say."""
        self.whole_spans = False
        self.media_at_once = True
        """Whether front ends and the worker answer at once what they are asked about media."""
        self.by_file = True
        """Whether front ends have items as files."""
        self.prepared: Callable[[int], bytes] = bytes
        """The bytes of an item of that size."""
        self.reads_files = True
        self.bad_media: set[str] = set()
        self.adapters_at_once = True
        """Whether the worker loads adapters as soon as it is told to."""
        self.bad_adapters: set[str] = set()
        """Digests."""
        self.disk: FakeDisk | None = None
        """That all its workers have; None: they have none."""
        self.disk_at_once = True
        """Whether it answers at once."""
        self.asked_media: deque[tuple[Front, NeedMedia]] = deque()
        """What front ends have not answered."""
        self.fail_prompts: set[tuple[int, ...]] = set()
        self.allow_internal_errors = False
        self.life = ""
        self._suspected: list[SequenceScore] = []
        self._running: set[tuple[bytes, int]] = set()
        self.accuses = True
        """Whether the loss of a worker counts against what was in flight."""
        self._salts = Salts(self.facts.config.cache)
        self.trace: list[bytes] = []
        self._sessions = 0
        self._requests = 0

    def join(self, other: Harness) -> None:
        """Its worker finds what the other's has kept."""
        self._salts.join(other._salts)

    # ---- the core's side

    def settle(self) -> None:
        """Lets the core step, takes what it sends, and checks all books."""
        effects = self.core.step(self.now)
        self.core.check()
        self._running = self._in_slots()
        self._check_accounts()
        told = [(session, message) for session, message, _ in effects.to_workers]
        self.trace.append(encode([told, effects.to_frontends]))
        for session, message, chunks in effects.to_workers:
            self.frames = tuple(chunk.data for chunk in chunks)
            self._to_worker(session, over_the_wire(message, ToWorker))
        due = list(self.worker.asked) if self.worker is not None and self.compile_at_once else []
        for session, message, frames in effects.to_frontends:
            front = next(front for front in self.fronts if front.session == session)
            self._front_gets(front, over_the_wire(message, ToFrontend), frames)
        for front in self.fronts:
            expected = {number for session, number in self._running if session == front.session}
            told = {n for n in front.in_step if not front.requests[n].over}
            heard = told == expected or self.allow_internal_errors
            assert heard, "the front end doesn't know what is in a step"
        for _, reason in effects.end_workers + effects.end_frontends:
            assert self.allow_internal_errors or "internal error" not in reason
        for session, reason in effects.end_workers:
            self._worker_ends(session, reason)
            self.core.worker_ended(session, reason, self.now)
        for session, reason in effects.end_frontends:
            front = next(front for front in self.fronts if front.session == session)
            front.ended = reason
            self._drop(front)
            self.core.frontend_ended(session, reason, self.now)
        for number in due:
            self.compiles(number)
        if self.media_at_once:
            self.answer_media()
        if self.adapters_at_once:
            self.load_adapter()
        if self.disk_at_once:
            self.answer_disk()

    def answer_disk(self, at: int = 0, lost: bytes | None = None) -> bool:
        """The worker's disk is done with what it is asked. Whether there was anything. See
        DiskReader.answer."""
        if self.worker is None or not self.worker.reader.due:
            return False
        self.worker_says(self.worker.reader.answer(at, lost))
        return True

    def load_adapter(self, digest: str | None = None) -> bool:
        """The worker is done with an adapter, the first one if none is named. Whether there was
        one."""
        worker = self.worker
        if worker is None or not worker.adapters.loading:
            return False
        self.worker_says(worker.adapters.answer(digest or next(iter(worker.adapters.loading))))
        return True

    def _in_slots(self) -> set[tuple[bytes, int]]:
        """(session, number) of each open request of which some is in a slot."""
        scheduler = self.core.state.scheduling
        held = [*scheduler.running.values(), *scheduler.marked.values()]
        return {(s.request.session, s.request.number) for s in held if not s.request.ended}

    def compiles(self, number: int) -> None:
        """The worker is done with a grammar, unless it was dropped meanwhile."""
        if self.worker is not None and number in self.worker.asked:
            self.worker_says(self.worker.compiles(number))

    def _check_accounts(self) -> None:
        """A tenant has an account for as long as it has sequences; nobody else has."""
        scheduler = self.core.state.scheduling
        if not isinstance(scheduler.policy, FairShare):
            return
        live = Counter(s.request.tenant for s in scheduler.running.values())
        live += Counter(s.request.tenant for s in scheduler.queue.sequences())
        live += Counter(s.request.tenant for s in self.core.state.media.parked())
        live += Counter(s.request.tenant for s in self.core.state.adapters.parked())
        accounts = scheduler.policy.accounts
        assert {a.name: a.open for a in accounts.all()} == dict(live)
        waiting = Counter(s.request.tenant for s in scheduler.queue.sequences())
        assert {a.name: a.num_waiting for a in accounts.all() if a.num_waiting} == dict(waiting)
        assert accounts.num_waiting == len(waiting)

    def _to_worker(self, session: bytes, message: ToWorker) -> None:
        if session == self.worker_session:
            self._worker_gets(message)

    def _worker_ends(self, session: bytes, reason: str) -> None:
        """The core ends a session."""
        if session == self.worker_session:
            self._forget_worker(reason)

    def _worker_gets(self, message: ToWorker) -> None:
        if isinstance(message, Setup):
            self.setup = message
            if self.digest not in ("", message.digest):
                self._check_unbegun()
            self.digest = message.digest
        elif isinstance(message, Sleep):
            self.asleep = True
        elif isinstance(message, (CompileGrammar, DropGrammar)):
            assert self.worker is not None
            self.worker.hears(message, self.plans[-1][0].step if self.plans else 0)
        elif isinstance(message, WorkerCall):
            assert not self.plans, "a call beside a step"
            assert not self.calls, "two calls at a time"
            self.calls.append(message)
        elif isinstance(message, (LoadAdapter, DropAdapter)):
            assert self.worker is not None
            self.worker.adapters.hears(message)
        elif isinstance(message, (LoadMedia, LoadMediaChunk, DropMedia)):
            assert self.worker is not None
            self.worker.media.hears(message, self.frames)
        elif isinstance(message, SaveKV):
            assert self.worker is not None
            assert not self.plans, "a plan would have said so"
            self._salts.save(message)
            self.worker.reader.save(message.saves)
        elif isinstance(message, (LookUpKV, FetchKV)):
            assert self.worker is not None
            if isinstance(message, FetchKV):
                self._salts.fetch(message)
            sent = self.plans[-1][0].step if self.plans else self.worker.last_step
            self.worker.reader.hears(message, sent)
            self.worker.begin_fetches()
        else:
            assert isinstance(message, Plan)
            assert not self.calls, "a step beside a call"
            stages = self.facts.config.parallel.pipeline_parallel_size
            assert len(self.plans) < max(self.facts.config.scheduler.max_steps_in_flight, stages)
            assert self.worker is not None
            self._salts.check(message, self._asked)
            slots = dict.fromkeys([work.slot for work in message.work])
            slots |= dict.fromkeys(self._encoded_for(message))
            self.plans.append((message, [self._score(slot) for slot in slots]))
            for work in message.work:
                request = self.core.state.scheduling.running[work.slot].request
                assert request.deadline is None or request.deadline > self.now, "expired work"

    def _check_unbegun(self) -> None:
        """Other weights: of what is open, nobody has seen anything."""
        for front in self.fronts:
            for request in front.requests.values():
                if request.rejected is not None or request.nothing_since_a_trial:
                    continue
                begun = any(
                    score.tokens or (score.terminal is not None and not score.finished_by_us)
                    for score in request.sequences.values()
                )
                assert request.over or not begun, "two sets of weights"

    def _encoded_for(self, plan: Plan) -> list[int]:
        """Slots of those that have come to an item that the plan has encoded, or a part of it."""
        names = {*plan.encode, *(part.name for part in plan.partly)}
        if not names:
            return []
        step = next(s for s in self.core.state.scheduling.in_flight if s.number == plan.step)
        found, owed = list(step.media.needed_by), set(names)
        for sequence in found:
            assert sequence.request.media is not None
            mine = names & sequence.request.media.numbers.keys()
            assert mine
            owed -= mine
        assert not owed, "an item is encoded for nobody who runs"
        return [sequence.slot for sequence in found if sequence.slot is not None]

    def _score(self, slot: int) -> SequenceScore:
        return self._asked(slot).sequences[self.core.state.scheduling.running[slot].index]

    def _asked(self, slot: int) -> RequestScore:
        """The request that a running slot works on."""
        request = self.core.state.scheduling.running[slot].request
        front = next(f for f in self.fronts if f.session == request.session)
        return front.requests[request.number]

    def _front_gets(self, front: Front, message: ToFrontend, frames: tuple[bytes, ...]) -> None:
        match message:
            case Welcome():
                assert front.welcome is None
                assert frames == (self.facts.tokenizer, self.facts.template)
                front.welcome = message
            case Status():
                front.status = message
            case Adapters(adapters):
                front.adapters |= {each.name: each for each in adapters}
            case Accepted(request):
                score = front.requests[request]
                assert not score.accepted
                assert score.rejected is None
                score.accepted = True
            case Rejected(request):
                assert not front.requests[request].accepted
                front.requests[request].rejected = message
            case NeedMedia(request, item):
                score = front.requests[request]
                assert score.accepted
                assert not score.over
                assert score.submit.media is not None
                assert message.offset < score.submit.media.items[item].size
                self.asked_media.append((front, message))
            case Called():
                front.called.append(message)
            case Prepared(request):
                assert front.requests[request].accepted
                front.requests[request].prepared = True
            case Outputs(outputs, entered, left):
                assert outputs or entered or left
                front.num_outputs += bool(outputs)
                assert not front.in_step & {*entered}
                assert {*left} <= front.in_step
                front.in_step = (front.in_step | {*entered}) - {*left}
                for output in outputs:
                    self._take(front.requests[output.request], output)

    def answer_media(self) -> bool:
        """Front ends send what they were asked for, and the worker says what it has. Whether there
        was anything."""
        was = False
        while True:
            if self.asked_media:
                self.send_media(*self.asked_media.popleft())
            elif not self.worker_answers():
                return was
            was = True

    def send_media(self, front: Front, asked: NeedMedia) -> None:
        """A front end answers, if it is still there."""
        if front not in self.fronts:
            return
        request, number = asked.request, asked.item
        if self.by_file and not asked.chunks:
            self.send(front, MediaFile(request, number, "/run/media/item"))
            return
        media = front.requests[request].submit.media
        assert media is not None
        size = min(MAX_MEDIA_CHUNK, media.items[number].size - asked.offset)
        chunk = over_the_wire(MediaChunk(request, number, asked.offset, size), FromFrontend)
        self.core.frontend_sent_chunk(front.session, chunk, self.prepared(size), self.now)
        self.settle()

    def worker_answers(self) -> bool:
        """The worker says the next thing about media. Whether there was one."""
        if self.worker is None or not self.worker.media.due:
            return False
        self.worker_says(self.worker.media.due.pop(0))
        return True

    def _take(self, request: RequestScore, output: SequenceOutput) -> None:
        longest, capacity = self.facts.max_model_len, self.capacity
        request.take(output, now=self.now, longest=longest, capacity=capacity)

    @property
    def num_reused(self) -> int:
        """Tokens that sequences found computed when they started."""
        return self._salts.num_reused

    @property
    def plan(self) -> Plan | None:
        """The oldest step in flight."""
        return self.plans[0][0] if self.plans else None

    @property
    def capacity(self) -> int | None:
        if self.worker is None:
            return None
        return longest_of(
            self.worker.groups, self.worker.num_blocks, self.facts.config.cache.kv_block_size
        )

    # ---- what front ends do

    def connect(self, versions: tuple[int, ...] = (2,)) -> Front:
        front = Front(self._new_session())
        self.fronts.append(front)
        self.core.frontend_opened(front.session, Hello(list(versions), "test", 1), self.now)
        self.settle()
        return front

    def send(self, front: Front, message: FromFrontend, *, settle: bool = True) -> None:
        message = over_the_wire(message, FromFrontend)
        self.core.frontend_received(front.session, message, self.now)
        if settle:
            self.settle()

    def submit(
        self,
        front: Front,
        prompt: list[int],
        *,
        n: int = 1,
        emitted: dict[int, list[int]] | None = None,
        deaths: int = 0,
        resumed: bool | None = None,
        seed: int = 1,
        salt: str = "",
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
        delivered: int = 0,
        settle: bool = True,
        grammar: Grammar | None = None,
        grant: Grant | None = None,
        sampling: dict[str, Any] | None = None,
        tenant: str = "",
        priority: int = 0,
        time_left_ms: int | None = None,
        timeline: bool = False,
        media: Media | None = None,
        prediction: list[int] | None = None,
        adapter: AdapterFile | None = None,
        gathered: bool = False,
        session: SessionTerms | None = None,
        **stopping: Any,
    ) -> RequestScore:
        self._requests += 1
        emitted = emitted or {}
        indexes = sorted(emitted) or range(n)
        submit = Submit(
            self._requests,
            self.name_of(),
            prompt,
            [OpenSequence(index, emitted.get(index, [])) for index in indexes],
            TokenSampling(
                seed=seed,
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs,
                **(sampling or {}),
            ),
            Stopping(**{"max_tokens": 8, **stopping}),
            deaths,
            resumed if resumed is not None else bool(emitted or deaths),
            cache_salt=salt,
            tenant=tenant,
            priority=priority,
            time_left_ms=time_left_ms,
            grammar=grammar,
            grant=grant,
            timeline=timeline,
            prompt_delivered=delivered,
            media=media,
            prediction=prediction or [],
            adapter=adapter,
            gathered=gathered,
            session=session,
        )
        left = None if time_left_ms is None else time_left_ms / 1000
        on_trial = self.core.state.weights.former is not None
        score = RequestScore(
            submit, None if left is None else self.now + left, during_trial=on_trial
        )
        for index in indexes:
            score.sequences[index] = SequenceScore(list(emitted.get(index, [])), deaths=deaths)
        if delivered and 0 in score.sequences:
            told = [told_of(prompt, at) for at in range(1, delivered)]
            score.sequences[0].prompt_logprobs = told
        front.requests[submit.request] = score
        self.send(front, submit, settle=settle)
        return score

    def name_of(self) -> str:
        """Of the newest request."""
        return f"r{self._requests}"

    def abort(self, front: Front, request: RequestScore) -> None:
        request.aborted = True
        self.send(front, Abort(request.submit.request))

    def take_away(self, front: Front, request: RequestScore) -> None:
        """As a front end does that has it go on elsewhere."""
        request.aborted = True
        self.send(front, Abort(request.submit.request, handed_over=True))

    def finish(self, front: Front, request: RequestScore, index: int) -> None:
        score = request.sequences[index]
        score.finished_by_us = True
        self.send(front, Finish(request.submit.request, index, len(score.tokens)))

    def disconnect(self, front: Front) -> None:
        self.core.frontend_ended(front.session, "it left", self.now)
        self._drop(front)
        self.settle()

    def _drop(self, front: Front) -> None:
        self.fronts.remove(front)
        self.gone.append(front)

    # ---- what the worker does

    def start_worker(
        self,
        num_blocks: int | None = None,
        *,
        ready: bool = True,
        host_blocks: int = 0,
        life: str = "",
    ) -> None:
        """life: of its process; one that has had a session before comes back with it."""
        self._forget_worker("replaced", dead=None)
        self._judge(dead=not life or life != self.life)
        self.life = life
        self.worker_session = self._new_session()
        hello = WorkerHello([2], 0, 2, life=life)
        self.core.worker_opened(self.worker_session, hello, self.now)
        self.settle()
        if ready and self.asleep:
            self.worker_says(Asleep())
        elif ready:
            self.worker_ready(num_blocks, host_blocks=host_blocks)

    def worker_ready(self, num_blocks: int | None = None, *, host_blocks: int = 0) -> None:
        assert self.setup is not None
        assert self.worker_session is not None
        self.worker = FakeWorker(
            self.setup,
            num_blocks or 1000,
            self.fail_prompts,
            num_host_blocks=host_blocks,
            groups=self.kv_groups,
            media=FakeMedia(
                self.media_rows,
                self.whole_spans,
                self.reads_files,
                self.bad_media,
                size=2 * (self.media_bytes or self.facts.config.cache.media_load_mib * 2**20),
                work=self.media_work,
            ),
            adapters=FakeAdapters(self.setup.max_loras, self.bad_adapters),
            disk=self.disk,
        )
        self._know_groups()
        self.worker.goes_on = self.goes_on
        self.worker.disturbed = lambda: self.disturbed()
        self.worker.late = lambda: self.late()
        self.worker.proposes = lambda: self.proposes()
        self.worker.drafts = lambda most: self.drafts(most)
        ready = Ready(
            num_kv_blocks=self.worker.num_blocks,
            device="cpu",
            fingerprint="f",
            load_seconds=0.1,
            num_host_blocks=host_blocks,
            copy_seconds=0.001 if host_blocks else 0.0,
            kv_groups=self.kv_groups,
            media_rows=self.media_rows,
            media_bytes=self.media_bytes,
            whole_spans=self.whole_spans,
            encoder_rows=self.encoder_rows,
            aligns=self.aligns,
            disk_kv=self.disk is not None,
            goes_on=self.goes_on,
        )
        self.worker_says(ready)

    def _know_groups(self) -> None:
        """A worker with these KV groups is ready."""
        state = state_of(self.kv_groups)
        self._salts.num_groups = len(paged(self.kv_groups))
        self._salts.state_blocks = 0 if state is None else state.blocks

    def worker_says(self, message: FromWorker) -> None:
        assert self.worker_session is not None
        message = over_the_wire(message, FromWorker)
        self.core.worker_received(self.worker_session, message, self.now)
        self.settle()

    def run_step(self) -> Result | None:
        """Executes the oldest step in flight, if there is one."""
        if not self.plans or self.worker is None:
            return None
        plan, _ = self.plans.popleft()
        result = self.worker.execute(plan)
        shares = self.worker.media.shares
        assert len(shares) < 2 or sum(shares) <= self.facts.config.scheduler.max_encoded_rows
        seconds = self.encode_seconds() if shares else 0.0
        result = msgspec.structs.replace(
            result, compute_seconds=self.step_seconds() + seconds, encode_seconds=seconds
        )
        self.worker_says(result)
        return result

    def run(self, most: int = 2000) -> None:
        """Until nothing is left to do."""
        for _ in range(most):
            others = (self.answer_media, self.load_adapter, self.answer_disk)
            if self.run_step() is None and not any(answer() for answer in others):
                assert not self.core.state.scheduling.has_work
                assert not self.core.state.adapters.num_waiting
                assert not self.core.state.media.num_waiting
                assert not self.core.state.disk_kv.num_fetches
                return
        raise AssertionError(f"not done after {most} steps")

    def kill_worker(self) -> None:
        session = self.worker_session
        if session is None:
            return
        self._forget_worker("killed", dead=None)
        self.core.worker_ended(session, "killed", self.now)
        self.settle()

    def _forget_worker(self, reason: str, *, dead: bool | None = True) -> None:
        """dead: whether that counts against what was in flight; None: it will turn out."""
        if self.worker_session is not None:
            self.worker_end = reason
        # The naive model of poison: deaths only ever count up.
        self._suspected += {id(s): s for _, scores in self.plans for s in scores}.values()
        if dead is not None:
            self._judge(dead=dead and self.accuses)
        self.plans.clear()
        self.calls.clear()
        self.worker_session = self.worker = self.setup = None
        self.asleep = False

    def _judge(self, *, dead: bool) -> None:
        for score in self._suspected:
            score.deaths += dead
        self._suspected.clear()

    def _new_session(self) -> bytes:
        self._sessions += 1
        return self._sessions.to_bytes(16, "big")


@cache
def longest_of(groups: tuple[KVGroup, ...], num_blocks: int, size: int) -> int:
    """Tokens of the longest sequence that a pool holds: block by block, the most that each group
    needs for any of its tokens."""
    states = state_of(groups)
    groups = paged(groups)
    most, blocks, made = [0] * len(groups), 0, 0
    while blocks < 1000:
        seen = [group.first_seen(blocks * size) // size for group in groups]
        most = [max(had, blocks + 1 - first) for had, first in zip(most, seen, strict=True)]
        if states is not None and states.every is not None:
            # The newest checkpoint, and the next one when it has to be written.
            made = states.blocks * min(2, (blocks + 1) * size // states.every)
        if sum(most) + made > num_blocks:
            break
        blocks += 1
    return blocks * size
