"""A Harness whose model is spread over several fake ranks, each of which checks what it is sent."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.protocol.from_worker import (
    Fault,
    FromWorker,
    GrammarReady,
    Ready,
    Result,
    WorkerHello,
)
from penstock.protocol.to_worker import FetchKV, LookUpKV, Plan, RankGroup, SaveKV, Setup, ToWorker
from penstock.protocol.worker_resources import CompileGrammar, DropGrammar
from tests.engine.fake_disk import FakeDisk
from tests.engine.fake_worker import FakeWorker
from tests.engine.harness import Harness
from tests.engine.wire import over_the_wire


@dataclass
class FirstStage:
    """A rank that doesn't sample: it knows no token that it wasn't told.

    Raises AssertionError on the first plan that breaks a rule of the protocol.
    """

    tokens: dict[int, list[int]] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    last_step: int = 0

    def hears(self, message: CompileGrammar | DropGrammar, sent: int) -> None:
        """Hears what FakeWorker does; it keeps no grammar."""
        if isinstance(message, CompileGrammar):
            assert message.grammar not in self.asked
            self.asked.add(message.grammar)
        else:
            self.asked.discard(message.grammar)

    def compiles(self, number: int) -> GrammarReady:
        self.asked.remove(number)
        return GrammarReady(number)

    def execute(self, plan: Plan) -> Result:
        assert plan.step == self.last_step + 1
        self.last_step = plan.step
        for slot in plan.released:
            del self.tokens[slot]
        for new in plan.admitted:
            assert new.slot not in self.tokens
            prompt = [] if new.like is None else self.tokens[new.like][: new.num_prompt]
            self.tokens[new.slot] = [*prompt, *new.tokens]
        for work in plan.work:
            tokens, end = self.tokens[work.slot], work.start + work.count
            if work.sampled:
                assert end - len(work.sampled) == len(tokens), "told twice, or something left out"
                tokens += work.sampled
            assert end <= len(tokens), "a token that this stage was not told"
        return Result(plan.step, [])


class LastStage(FakeWorker):
    """A rank that samples: it has what it is told."""

    def execute(self, plan: Plan) -> Result:
        for work in plan.work:
            if work.sampled:
                end = work.start + work.count
                known = self.slots[work.slot].tokens[end - len(work.sampled) :]
                assert known == work.sampled
        result = super().execute(plan)
        pairs = repr([(each.slot, each.token) for each in result.slots])
        return msgspec.structs.replace(result, sampled=zlib.crc32(pairs.encode()))


@dataclass
class Rank:
    """One rank's session. plans: that it was sent, and has not executed.  failed: it executes no
    more, and has said so."""

    rank: int
    session: bytes
    rendezvous: str
    setup: Setup | None = None
    worker: FirstStage | LastStage | None = None
    plans: deque[Plan] = field(default_factory=deque)
    failed: bool = False


class RankHarness(Harness):
    """`worker` and what the Harness does with it are the leading rank's.

    ranks: those with a session.  disks: of each rank, where they keep blocks.  ends: what each
    whose session the core ended was told.
    """

    def __init__(self, tensor: int = 1, pipeline: int = 1, **options: Any) -> None:
        super().__init__(tensor=tensor, pipeline=pipeline, **options)
        self.tensor, self.pipeline = tensor, pipeline
        self.size = tensor * pipeline
        self.lead = tensor * (pipeline - 1)
        self.ranks: dict[int, Rank] = {}
        self.disks: dict[int, FakeDisk] = {}
        self.lives: dict[int, str] = {}
        """Lives of the ranks' processes; one that isn't named here has another life each time."""
        self.ends: list[tuple[int, str]] = []
        self.last_number = 0
        self.num_followed = 0
        """Works that were sent behind others of the same sequence, which were in flight."""
        self._known: dict[int, int] = {}
        """Tokens that all ranks were told, by slot."""
        self._failed_and_gone: set[bytes] = set()
        self._formed: list[RankGroup | None] = []
        self._lates: list[bool] = []
        self._drafted: list[tuple[int, int]] = []

    @property
    def formed(self) -> bool:
        """Whether all ranks have got their Setup."""
        return self.setup is not None

    # ---- the core's side

    def _to_worker(self, session: bytes, message: ToWorker) -> None:
        rank = next((one for one in self.ranks.values() if one.session == session), None)
        if rank is None:
            # The group isn't over yet, though this one is.
            assert session in self._failed_and_gone, "a message to a session that is over"
            assert isinstance(message, DropGrammar | LookUpKV | FetchKV | SaveKV)
            return
        if isinstance(message, Setup):
            self._gets_setup(rank, message)
        elif isinstance(message, Plan):
            self._gets_plan(rank, message)
        elif isinstance(message, LookUpKV | FetchKV):
            self._asks_disk(rank, message)
        elif isinstance(message, SaveKV):
            self._saves(rank, message)
        else:
            assert isinstance(message, (CompileGrammar, DropGrammar))
            assert rank.worker is not None
            rank.worker.hears(message, self.plans[-1][0].step if self.plans else 0)

    def _gets_setup(self, rank: Rank, setup: Setup) -> None:
        rank.setup = setup
        self._formed.append(setup.group)
        if len(self._formed) < self.size:
            return
        assert len(self.ranks) == self.size
        self.setup = setup
        number = 0 if setup.group is None else setup.group.number
        groups = [
            RankGroup(
                tensor=self.tensor,
                pipeline=self.pipeline,
                rank=each,
                rendezvous=self.ranks[0].rendezvous,
                number=number,
            )
            for each in range(self.size)
        ]
        assert self._formed == (groups if self.size > 1 else [None])
        assert self.size == 1 or number > self.last_number
        self.last_number = number

    def _gets_plan(self, rank: Rank, plan: Plan) -> None:
        assert not any(one.failed for one in self.ranks.values()), "a plan for who has failed"
        if rank.rank == 0:
            self._check_company(plan)
            self._worker_gets(plan)
        assert plan == self.plans[-1][0], "ranks are sent different plans"
        assert self.pipeline > 1 or not any(work.sampled for work in plan.work)
        rank.plans.append(plan)

    def _asks_disk(self, rank: Rank, message: LookUpKV | FetchKV) -> None:
        assert isinstance(rank.worker, LastStage)
        if rank.rank == 0 and isinstance(message, FetchKV):
            self._salts.fetch(message)
        sent = self.plans[-1][0].step if self.plans else rank.worker.last_step
        rank.worker.reader.hears(message, sent)
        rank.worker.begin_fetches()

    def _saves(self, rank: Rank, message: SaveKV) -> None:
        assert isinstance(rank.worker, LastStage)
        assert not self.plans, "a plan would have said so"
        if rank.rank == 0:
            self._salts.save(message)
        rank.worker.reader.save(message.saves)

    def _check_company(self, plan: Plan) -> None:
        """Over stages, nothing follows what samples a token that only the last one will know."""
        for new in plan.admitted:
            told = new.num_prompt if new.like is not None else 0
            self._known[new.slot] = told + len(new.tokens)
        for work in plan.work:
            self._known[work.slot] += len(work.sampled)
        if self.pipeline == 1:
            return
        known = {work.slot: self._known[work.slot] for work in plan.work}
        for sent, _ in self.plans:
            for work in sent.work:
                if work.slot in known:
                    assert work.start + work.count < known[work.slot], "behind what samples"
                    self.num_followed += 1

    def _worker_ends(self, session: bytes, reason: str) -> None:
        rank = next((one for one in self.ranks.values() if one.session == session), None)
        if rank is not None:
            self.ends.append((rank.rank, reason))
            if rank.setup is not None:
                self._forget_worker(reason)
            self.ranks.pop(rank.rank, None)

    def compiles(self, number: int) -> None:
        """All ranks are done with a grammar, one after another, as far as it isn't dropped."""
        for rank in list(self.ranks.values()):
            there = self.ranks.get(rank.rank) is rank
            if there and rank.worker is not None and number in rank.worker.asked:
                self.rank_says(rank.rank, rank.worker.compiles(number))

    # ---- what ranks do

    def hello(self, rank: int) -> None:
        """A rank dials in; who had its place hears that in time."""
        before = self.ranks.pop(rank, None)
        if before is not None and before.setup is not None:
            self._forget_worker("replaced", dead=None)
        self._judge(dead=True)
        session = self._new_session()
        rendezvous = f"host:{len(self.trace)}" if self.size > 1 else ""
        self.ranks[rank] = Rank(rank, session, rendezvous)
        hello = WorkerHello([2], rank, 2, rendezvous, self.lives.get(rank, ""))
        self.core.worker_opened(session, hello, self.now)
        self.settle()

    def rank_ready(self, rank: int, num_blocks: int = 1000, host_blocks: int = 0) -> None:
        mine = self.ranks[rank]
        assert mine.setup is not None
        if rank < self.lead:
            mine.worker = FirstStage()
        else:
            mine.worker = LastStage(
                mine.setup,
                num_blocks,
                self.fail_prompts,
                num_host_blocks=host_blocks,
                groups=self.kv_groups,
                disk=self.disks.get(rank),
            )
            mine.worker.late = self._agreed_lates()
            mine.worker.proposes = lambda: self.proposes()
            mine.worker.drafts = self._agreed_drafts()
        if all(one.worker is not None for one in self.ranks.values()):
            lead = self.ranks[self.lead].worker
            assert isinstance(lead, LastStage)
            self.worker = lead
            self._know_groups()
        ready = Ready(
            num_kv_blocks=num_blocks,
            device="cpu",
            fingerprint="f",
            load_seconds=0.1,
            num_host_blocks=host_blocks,
            copy_seconds=0.001 if host_blocks else 0.0,
            kv_groups=self.kv_groups,
            disk_kv=bool(self.disks),
        )
        self.rank_says(rank, ready)

    def _agreed_lates(self) -> Callable[[], bool]:
        """Ranks agree on which masks are late: they ask in the same order."""
        asked = 0

        def late() -> bool:
            nonlocal asked
            asked += 1
            if asked > len(self._lates):
                self._lates.append(self.late())
            return self._lates[asked - 1]

        return late

    def _agreed_drafts(self) -> Callable[[int], tuple[int, int]]:
        """How many drafts there are, and how many of these are right, where the ranks agree."""
        asked = 0

        def drafts(most: int) -> tuple[int, int]:
            nonlocal asked
            asked += 1
            if asked > len(self._drafted):
                self._drafted.append(self.drafts(most))
            return self._drafted[asked - 1]

        return drafts

    def rank_says(self, rank: int, message: FromWorker) -> None:
        message = over_the_wire(message, FromWorker)
        self.ranks[rank].failed |= isinstance(message, Fault)
        self.core.worker_received(self.ranks[rank].session, message, self.now)
        self.settle()

    def rank_step(self, rank: int, **lies: Any) -> Result | None:
        """One rank executes its oldest plan, and tells so. lies: fields of its Result."""
        mine = self.ranks.get(rank)
        if mine is None or mine.worker is None or mine.failed or not mine.plans:
            return None
        plan = mine.plans.popleft()
        result = mine.worker.execute(plan)
        if rank != self.lead:
            result = msgspec.structs.replace(result, slots=[])
        steps = [one.worker.last_step for one in self.ranks.values() if one.worker is not None]
        if min(steps) == plan.step and not lies:
            self.plans.popleft()  # It was the last of them.
        self.rank_says(rank, msgspec.structs.replace(result, **lies))
        return result

    def disks_due(self) -> list[int]:
        """Ranks whose disks have something to answer."""
        return [
            rank
            for rank, one in sorted(self.ranks.items())
            if isinstance(one.worker, LastStage) and one.worker.reader.due and not one.failed
        ]

    def answer_disk(self, at: int = 0, lost: bytes | None = None, rank: int | None = None) -> bool:
        """Answers for the disk, as the Harness does; rank: whose, else the first that has anything
        to answer."""
        due = self.disks_due() if rank is None else [rank]
        if not due or self.worker is None:
            return False
        worker = self.ranks[due[0]].worker
        assert isinstance(worker, LastStage)
        self.rank_says(due[0], worker.reader.answer(at, lost))
        return True

    def kill_rank(self, rank: int) -> None:
        mine = self.ranks.pop(rank, None)
        if mine is None:
            return
        if mine.failed:
            self._failed_and_gone.add(mine.session)
        elif mine.setup is not None:
            self._forget_worker("killed", dead=None)
        self.core.worker_ended(mine.session, "killed", self.now)
        self.settle()

    # ---- as the Harness has them

    def start_worker(
        self, num_blocks: int | None = None, *, ready: bool = True, host_blocks: int = 0
    ) -> None:
        """Has the workers that are missing dial in; all of them anew, if none is."""
        missing = [rank for rank in range(self.size) if rank not in self.ranks]
        for rank in missing or list(range(self.size)):
            self.hello(rank)
        if ready:
            self.worker_ready(num_blocks, host_blocks=host_blocks)

    def worker_ready(self, num_blocks: int | None = None, *, host_blocks: int = 0) -> None:
        for rank in range(self.size):
            if self.ranks[rank].worker is None:
                self.rank_ready(rank, num_blocks or 1000, host_blocks)

    def worker_says(self, message: FromWorker) -> None:
        self.rank_says(self.lead, message)

    def run_step(self) -> Result | None:
        """All ranks that have not executed the oldest step in flight do."""
        if not self.plans or self.worker is None:
            return None
        step = self.plans[0][0].step
        lead = None
        for rank in range(self.size):
            mine = self.ranks.get(rank)
            if mine is not None and mine.plans and mine.plans[0].step == step:
                result = self.rank_step(rank)
                lead = result if rank == self.lead else lead
        return lead or Result(step, [])

    def kill_worker(self) -> None:
        self.kill_rank(self.lead)

    def _forget_worker(self, reason: str, *, dead: bool | None = True) -> None:
        super()._forget_worker(reason, dead=dead)
        self._formed.clear()
        self._lates.clear()
        self._drafted.clear()
        for rank in self.ranks.values():
            rank.worker = None
            rank.plans.clear()
