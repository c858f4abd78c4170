"""The worker side of the harness: it starts and kills fake workers, hands them what the core sends,
and gives their answers back. It also follows two things that no worker knows: under which salt each
block was computed, and whose deaths count against a sequence.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from penstock.model.kv_layout import paged, state_of
from penstock.protocol.from_worker import Asleep, FromWorker, Ready, Result, WorkerHello
from penstock.protocol.to_worker import (
    FetchKV,
    LookUpKV,
    Plan,
    SaveKV,
    Setup,
    Sleep,
    ToWorker,
    WorkerCall,
)
from penstock.protocol.worker_resources import (
    CompileGrammar,
    DropAdapter,
    DropGrammar,
    DropMedia,
    LoadAdapter,
    LoadMedia,
    LoadMediaChunk,
)
from penstock_engine.facts import EngineFacts
from tests.engine.fake_adapters import FakeAdapters
from tests.engine.fake_media import FakeMedia
from tests.engine.fake_worker import FakeWorker
from tests.engine.salts import Salts
from tests.engine.scores import SequenceScore
from tests.engine.wire import over_the_wire
from tests.engine.worker_traits import WorkerTraits


class WorkerSide(WorkerTraits):
    """What workers do, and what they are sent."""

    def __init__(self, engine_facts: EngineFacts | None = None, **options: Any) -> None:
        super().__init__(engine_facts, **options)
        self.worker_session: bytes | None = None
        self.worker_end: str | None = None
        """Why the last session ended."""
        self.life = ""
        """The life of the worker's process: see start_worker."""
        self.setup: Setup | None = None
        self.asleep = False
        """Whether the worker was told to sleep."""
        self.plans: deque[tuple[Plan, list[SequenceScore]]] = deque()
        """Steps in flight, each with what it works on."""
        self.calls: deque[WorkerCall] = deque()
        """Calls of the worker's extensions that it has not answered."""
        self.frames: tuple[bytes, ...] = ()
        """Frames that came with the newest message."""
        self._suspected: list[SequenceScore] = []
        self._salts = Salts(self.facts.config.cache)

    def join(self, other: WorkerSide) -> None:
        """Its worker finds what the other's has kept."""
        self._salts.join(other._salts)

    @property
    def num_reused(self) -> int:
        """Tokens that sequences found computed when they started."""
        return self._salts.num_reused

    @property
    def plan(self) -> Plan | None:
        """The oldest step in flight."""
        return self.plans[0][0] if self.plans else None

    # ---- its life

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
            fingerprint=self.fingerprint,
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

    def kill_worker(self) -> None:
        session = self.worker_session
        if session is None:
            return
        self._forget_worker("killed", dead=None)
        self.core.worker_ended(session, "killed", self.now)
        self.settle()

    def _worker_ends(self, session: bytes, reason: str) -> None:
        """The core ends a session."""
        if session == self.worker_session:
            self._forget_worker(reason)

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

    # ---- what it is sent

    def _to_worker(self, session: bytes, message: ToWorker) -> None:
        if session == self.worker_session:
            self._worker_gets(message)

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
            wanted = [slot for slot in slots if not self._is_internal(slot)]
            self.plans.append((message, [self._score(slot) for slot in wanted]))
            for work in message.work:
                request = self.core.state.scheduling.running[work.slot].request
                assert request.deadline is None or request.deadline > self.now, "expired work"

    # ---- what it answers

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

    def compiles(self, number: int) -> None:
        """The worker is done with a grammar, unless it was dropped meanwhile."""
        if self.worker is not None and number in self.worker.asked:
            self.worker_says(self.worker.compiles(number))

    def load_adapter(self, digest: str | None = None) -> bool:
        """The worker is done with an adapter, the first one if none is named. Whether there was
        one."""
        worker = self.worker
        if worker is None or not worker.adapters.loading:
            return False
        self.worker_says(worker.adapters.answer(digest or next(iter(worker.adapters.loading))))
        return True

    def answer_disk(self, at: int = 0, lost: bytes | None = None) -> bool:
        """The worker's disk is done with what it is asked. Whether there was anything. See
        DiskReader.answer."""
        if self.worker is None or not self.worker.reader.due:
            return False
        self.worker_says(self.worker.reader.answer(at, lost))
        return True

    def worker_answers(self) -> bool:
        """The worker says the next thing about media. Whether there was one."""
        if self.worker is None or not self.worker.media.due:
            return False
        self.worker_says(self.worker.media.due.pop(0))
        return True
