"""Which tokens the next step computes, and what its result means for the sequences.

Charter: this file knows tokens, blocks and slots.  What differs between deployments (order,
admission, preemption, shares) comes in as policy objects; sessions, messages to front ends and
stop rules are the core's.  No feature adds a branch to `plan`.
"""

from __future__ import annotations

from collections import deque

from penstock.config import SchedulerSettings
from penstock.protocol.from_worker import Result, SlotResult
from penstock.protocol.to_worker import Plan
from penstock_engine.draft import Draft, StepInFlight, UnfitResult
from penstock_engine.kv.pool import BlockPool
from penstock_engine.kv.table import BlockTable, blocks_for
from penstock_engine.policies.admission import Headroom
from penstock_engine.policies.order import FirstComeFirstServed, QueueOrder
from penstock_engine.policies.preemption import LatestFirst, PreemptionChoice
from penstock_engine.policies.shares import PrefillShare
from penstock_engine.queue import WaitingQueue
from penstock_engine.request import Sequence, State


class Scheduler:
    """Owns the queue, the slots, the block pool and the steps in flight.

    `add` and `finish` may be called at any time.  `plan` may be called while steps are in flight:
    the next one is sent before their results are known, so that the worker never waits for it.
    Without a pool (no worker) `plan` returns None and sequences wait.

    A slot and its blocks are freed in `_release`, and only when no step in flight refers to the
    sequence: one that ends in mid-step is marked, and released when the last of its steps is
    settled; one that is to be preempted leaves likewise.
    """

    FOLLOWED_TOKENS = 512
    """A step of more tokens is not followed before it is settled: the pause after it is a small
    part of it, and a request that arrives meanwhile would have to wait for its follower too."""

    def __init__(
        self,
        settings: SchedulerSettings,
        block_size: int,
        max_model_len: int,
        *,
        order: QueueOrder | None = None,
        preemption: PreemptionChoice | None = None,
    ) -> None:
        order = order or FirstComeFirstServed()
        self.block_size = block_size
        self.queue = WaitingQueue(order)
        self.running: dict[int, Sequence] = {}
        """By slot, in the order in which they started."""
        self.marked: dict[int, Sequence] = {}
        """Ended, by slot; a step in flight still refers to them."""
        self.leaving: dict[int, Sequence] = {}
        """Running, by slot, and to be preempted once no step in flight refers to them."""
        self.pool: BlockPool | None = None
        self.num_preemptions = 0
        self.num_steps = 0
        self._budget = settings.max_num_batched_tokens
        self._max_in_flight = settings.max_steps_in_flight
        self._max_model_len = max_model_len
        self.max_num_seqs = settings.max_num_seqs
        self._preemption = preemption or LatestFirst(order)
        self._headroom = Headroom()
        self._share = PrefillShare()
        self._in_flight: deque[StepInFlight] = deque()
        self._suspect: Sequence | None = None
        self._forget_worker()

    def _forget_worker(self) -> None:
        self.free_slots = list(range(self.max_num_seqs - 1, -1, -1))
        self._released: list[int] = []
        self._last_step = 0
        self._last_was_alone = False

    # ---- what the core tells it

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.queue or self._in_flight)

    @property
    def capacity(self) -> int | None:
        """Tokens that the whole pool holds; None without a worker."""
        return None if self.pool is None else self.pool.num_blocks * self.block_size

    @property
    def _longest(self) -> int:
        """Tokens that a sequence may have."""
        capacity = self.capacity
        return self._max_model_len if capacity is None else min(self._max_model_len, capacity)

    def attach(self, num_blocks: int) -> None:
        """A worker is ready, with an empty pool of that many blocks."""
        self.pool = BlockPool(num_blocks)

    def detach(self) -> list[Sequence]:
        """The worker is gone, and its KV with it. Everything that ran waits again.

        Returns the sequences that were in a step in flight: the death counts against each, and it
        runs alone until it has passed the point that the fatal step would have reached.
        """
        accused: dict[Sequence, None] = {}
        for step in self._in_flight:
            for sequence, end, _ in step.items:
                sequence.in_flight = 0
                sequence.suspect_until = max(sequence.suspect_until, end)
                if not sequence.finished:
                    accused[sequence] = None
        for sequence in accused:
            sequence.deaths += 1
        self._in_flight.clear()
        for sequence in [*self.running.values(), *self.marked.values()]:
            sequence.slot = sequence.table = None
            if not sequence.finished:
                sequence.move(State.WAITING)
                sequence.forget_computed()
                self.queue.push(sequence)
        self.running.clear()
        self.marked.clear()
        self.leaving.clear()
        self._suspect = None
        self.pool = None
        self._forget_worker()
        return list(accused)

    def add(self, sequence: Sequence) -> None:
        """A new sequence, WAITING."""
        self.queue.push(sequence)

    def finish(self, sequence: Sequence, state: State) -> None:
        """Ends a sequence in whatever live state it is. Raises IllegalTransition."""
        sequence.move(state)
        if sequence.ticket:
            self.queue.remove(sequence)
        slot = sequence.slot
        if slot is None:
            return
        self._leave_running(sequence, slot)
        if sequence.in_flight:
            self.marked[slot] = sequence
        else:
            self._release(sequence)

    # ---- decide

    def plan(self) -> Plan | None:
        """The next step, or None: enough are in flight, there is no worker, or nothing to do.

        The one invariant.  A sequence will have num_expected tokens (prompt and emitted) once
        every step in flight is settled, and its KV lags behind: num_scheduled <= num_expected.  A
        step gives a sequence `count` of the step's token budget and moves num_scheduled up by as
        much; when that reaches num_expected the step also samples a token, so num_expected moves
        one ahead and the chase goes on.  The worker holds that token by the time the next step
        needs it, whether or not its number has been seen here.  Nothing else happens to a
        sequence that runs: a long prompt taken in chunks, a prompt, a decode and the
        recomputation after a preemption are all this, and differ only in how far num_scheduled is
        behind.

        Decodes (one token behind) are served first, within a limit that leaves prefill its share;
        then what has started, in order; then whoever waits, strictly in order, while slots,
        blocks and budget last; then decodes that the limit had kept out.
        """
        if self.pool is None or (self._in_flight and not self._may_follow()):
            return None
        for sequence in [s for s in self.leaving.values() if not s.in_flight]:
            self._preempt(sequence)
        draft = Draft(self._budget)
        turns = [self._run_suspect, self._run_others]
        if self._last_was_alone:
            turns.reverse()
        for run in turns:
            if not draft.items:
                run(draft)
        if not draft.items:
            return None
        self._last_was_alone = draft.alone
        self._last_step += 1
        plan, step = draft.commit(self._last_step, self._released)
        self._released = []
        self._in_flight.append(step)
        return plan

    def _may_follow(self) -> bool:
        """Whether one more step may be sent behind those in flight.

        While a suspect is about they go one by one, so that a death accuses one step.
        """
        latest, head = self._in_flight[-1], self.queue.head()
        suspects = latest.alone or self._suspect or (head is not None and head.suspect_until)
        room = len(self._in_flight) < self._max_in_flight
        return room and latest.tokens <= self.FOLLOWED_TOKENS and not suspects

    def _behind(self, sequence: Sequence) -> int:
        """Tokens that the next step may compute: none where the last one is on its way."""
        if sequence.num_expected >= min(sequence.most_tokens, self._longest):
            return 0
        return sequence.num_expected - sequence.num_scheduled

    def _run_others(self, draft: Draft) -> None:
        decodes: list[Sequence] = []
        chunks: list[Sequence] = []
        for slot, sequence in self.running.items():
            behind = self._behind(sequence)
            if behind and sequence is not self._suspect and slot not in self.leaving:
                (decodes if behind == 1 else chunks).append(sequence)
        limit = self._share.decode_limit(
            draft.left, prefill_pending=bool(chunks or (self.queue and self.free_slots))
        )
        if len(decodes) > limit:
            # Not all fit: those that were served least recently go first.
            decodes.sort(key=lambda sequence: sequence.last_work)
        for sequence in decodes[:limit]:
            self._extend(sequence, draft)
        for sequence in chunks:
            self._extend(sequence, draft)
        self._admit(draft)
        for sequence in decodes[limit:]:
            self._extend(sequence, draft)

    def _extend(self, sequence: Sequence, draft: Draft) -> None:
        """Gives a running sequence as much of the step as budget and blocks allow."""
        table, pool = sequence.table, self.pool
        if table is None or pool is None or sequence.slot in self.leaving or not draft.left:
            return  # Preempted earlier in this plan, or the budget is spent.
        start = sequence.num_scheduled
        end = min(start + self._behind(sequence), start + draft.left)
        room = table.capacity
        if end <= room:
            draft.work(sequence, start, end, [])
            return
        if room == start and not pool.num_free:
            self._make_room(sequence, draft)
        end = min(end, room + pool.num_free * self.block_size)
        if end > start:
            draft.work(sequence, start, end, table.grow(pool, end))

    def _make_room(self, needy: Sequence, draft: Draft) -> None:
        """Preempts somebody, at once or as soon as no step in flight refers to them."""
        if self.leaving:
            return  # Blocks are on their way.
        victim = self._preemption.victim(self.running.values(), needy)
        if victim is None or victim.slot is None:
            return
        draft.withdraw(victim)
        if victim.in_flight:
            self.leaving[victim.slot] = victim
        else:
            self._preempt(victim)

    def _preempt(self, victim: Sequence) -> None:
        if victim.slot is None:
            raise ValueError(f"sequence {victim.index} of {victim.request.name} holds no slot")
        self._leave_running(victim, victim.slot)
        self._release(victim)
        victim.move(State.PREEMPTED)
        victim.forget_computed()
        self.queue.push(victim)
        self.num_preemptions += 1

    def _admit(self, draft: Draft) -> None:
        """Starts those that wait, strictly in order.

        Whoever was preempted in this plan doesn't start again in it: it needs at least the blocks
        that it gave up, and one of those is taken.
        """
        if not self.queue or not self.free_slots or not draft.left:
            return
        while draft.left:
            head = self.queue.head()
            if head is None or head.suspect_until or not self._fits(head):
                return
            self._start(head, draft)

    def _fits(self, head: Sequence) -> bool:
        """Whether `head` may start: a slot, and blocks for all its tokens and the next one.

        Who runs has the blocks for the tokens that it has: budget is left for a newcomer only
        when all that have started are served.
        """
        if self.pool is None or not self.free_slots:
            return False
        needed = blocks_for(head.num_tokens + 1, self.block_size)
        if self.running:
            needed += self._headroom.blocks(len(self.running), self.block_size)
        return needed <= self.pool.num_free

    def _start(self, sequence: Sequence, draft: Draft) -> None:
        if self.pool is None:
            return
        self.queue.remove(sequence)
        sequence.move(State.RUNNING)
        slot = self.free_slots.pop()
        sequence.slot = slot
        sequence.table = BlockTable(self.block_size)
        self.running[slot] = sequence
        end = min(sequence.num_tokens, draft.left)
        sequence.table.grow(self.pool, end)
        draft.admit(sequence)
        draft.work(sequence, 0, end, [])

    # ---- suspects: those that ran when a worker or an engine died

    def _run_suspect(self, draft: Draft) -> None:
        """Gives the whole step to one suspect, if there is one; they take turns with the others.

        A suspect that was computed alone past the point at which it was accused is none.
        """
        if self._suspect is not None:
            self._extend(self._suspect, draft)
        else:
            head = self.queue.head()
            if head is None or not head.suspect_until or not self._fits(head):
                return
            self._start(head, draft)
            self._suspect = head
        draft.alone = bool(draft.items)

    # ---- apply

    def verify(self, result: Result, vocab_size: int) -> StepInFlight:
        """The oldest step in flight; UnfitResult unless `result` answers it, item for item."""
        if not self._in_flight:
            raise UnfitResult(f"a result for step {result.step} where no step is in flight")
        self._in_flight[0].verify(result, vocab_size)
        return self._in_flight[0]

    def apply(self, result: Result) -> list[tuple[Sequence, SlotResult]]:
        """Settles the oldest step in flight; `verify` has been called.

        Returns the sequences that have a new token (appended already) or an error, in the plan's
        order.  The caller decides which of them end.
        """
        step = self._in_flight[0]
        advanced: list[tuple[Sequence, SlotResult]] = []
        for (sequence, end, _), outcome in zip(step.items, result.slots, strict=True):
            sequence.in_flight -= 1
            if sequence.state is not State.RUNNING:
                if not sequence.in_flight and sequence.slot is not None:
                    del self.marked[sequence.slot]
                    self._release(sequence)
                continue
            if outcome.error is not None:
                advanced.append((sequence, outcome))
                continue
            sequence.num_computed = end
            if outcome.token is not None:
                sequence.append(outcome.token)
                advanced.append((sequence, outcome))
        if step.alone and self._suspect is not None:
            self._exonerate(self._suspect)
        # Last: a step that can't be applied is still in flight when the books are built again.
        self._in_flight.popleft()
        self.num_steps += 1
        return advanced

    def _exonerate(self, sequence: Sequence) -> None:
        if sequence.num_computed >= sequence.suspect_until:
            sequence.suspect_until = sequence.deaths = 0
            self._suspect = None

    def _leave_running(self, sequence: Sequence, slot: int) -> None:
        del self.running[slot]
        self.leaving.pop(slot, None)
        if sequence is self._suspect:
            self._suspect = None

    def _release(self, sequence: Sequence) -> None:
        """The one place where a slot and its blocks become free."""
        if sequence.table is None or sequence.slot is None or self.pool is None:
            raise ValueError(f"sequence {sequence.index} of {sequence.request.name} holds no slot")
        sequence.table.release(self.pool)
        self.free_slots.append(sequence.slot)
        self._released.append(sequence.slot)
        sequence.slot = sequence.table = None
