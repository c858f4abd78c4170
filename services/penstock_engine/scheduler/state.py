"""Which sequences wait, which hold a slot and KV blocks, and what the results of steps do to them.

Charter: this file makes no choices.  It knows tokens, blocks and slots; sessions, messages to front
ends and stop rules are the core's.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from penstock.config.settings import SchedulerSettings
from penstock.model.kv_layout import KVGroup
from penstock.protocol.from_worker import Result, SlotResult
from penstock_engine.kv.cache import KVCache
from penstock_engine.kv.groups import KVGroups
from penstock_engine.kv.pool import BlockPool
from penstock_engine.parts import ReportsStatus
from penstock_engine.policies.forecast import StepCostForecast
from penstock_engine.policies.fresh_share import FreshShare
from penstock_engine.policies.policy import Policy
from penstock_engine.request.request import Request, Sequence
from penstock_engine.request.states import SequenceState
from penstock_engine.request.step_in_flight import StepInFlight, UnfitResult
from penstock_engine.scheduler.features import SchedulerFeatures
from penstock_engine.scheduler.prefix_reuse import PrefixReuse
from penstock_engine.scheduler.resumption import Resumption
from penstock_engine.scheduler.settled_steps import StepLessons
from penstock_engine.sessions.fault_attribution import FaultAttribution
from penstock_engine.speculation.draft_policy import DraftPolicy

SET_ASIDE = (SequenceState.WAITING_FOR_MEDIA, SequenceState.WAITING_FOR_ADAPTER)
"""States of those that have left the queue for a while, and not the policy."""


class SchedulerState(ReportsStatus):
    """Owns the queue, the slots, the block pool and the steps in flight.

    `add` and `finish` may be called at any time.

    A slot and its blocks are freed in `_release`, and only when no step in flight refers to the
    sequence: one that ends in mid-step is marked, and released when the last of its steps is
    settled; one that is to be preempted leaves likewise.
    """

    LEAST_BUDGET = 64
    """Tokens that a step may have however often memory ran out."""

    MAX_DEFERRALS = 32
    """Steps in a row that may pass a sequence by because the mask of its grammar is late; as many
    more as it has tokens that the grammar must follow before the first mask."""

    def __init__(
        self,
        settings: SchedulerSettings,
        block_size: int,
        max_model_len: int,
        policy: Policy,
        session_share: float = 0.0,
    ) -> None:
        """session_share: of the pool, that free blocks kept for sessions may take."""
        self.policy = policy
        self._session_share = session_share
        self.block_size = block_size
        self.queue = self.policy.queue
        self.running: dict[int, Sequence] = {}
        """Running sequences by slot, in the order in which they started."""
        self.marked: dict[int, Sequence] = {}
        """Ended, by slot; a step in flight still refers to them."""
        self.leaving: dict[int, Sequence] = {}
        """Running, by slot, and to be preempted once no step in flight refers to them."""
        self._moved: dict[Request, None] = {}
        """Requests with a sequence that has got or lost a slot lately."""
        self.cache: KVCache | None = None
        self.kv_groups = KVGroups(block_size)
        """KV groups of the present worker's model."""
        self.num_released = 0  # slots that became free so far, with their blocks
        self.num_preemptions = 0
        self.num_steps = 0
        self.budget = settings.max_num_batched_tokens
        """Tokens of a step; see `shrink`."""
        self._max_model_len = max_model_len
        self.capacity: int | None = None
        """Tokens of the longest sequence that the whole pool holds; None without a worker."""
        self.longest = max_model_len
        """Tokens that a sequence may have, with the pool that there is."""
        self.max_num_seqs = settings.max_num_seqs
        self.step_cost = StepCostForecast()
        self.fresh_share = FreshShare()
        self._resume = Resumption(settings.preemption_mode, self.step_cost, self.budget)
        self.draft_policy = DraftPolicy()
        """How many tokens are drafted, and what was learnt of that."""
        self._lessons = StepLessons(policy, self.step_cost, self.draft_policy)
        self.features = SchedulerFeatures()
        """What else counts where sequences start and steps are made."""
        self.replayed: Sequence | None = None
        """Runs without a request, in steps that would be empty otherwise; in neither the queue nor
        the policy."""
        self.short: Sequence | None = None
        """The sequence whose next tokens must be computed in one step, and for which the latest
        step was too short. It is served first in the next step, by itself if need be."""
        self.whole_spans = False
        """Whether a sequence can't start in the middle of a span of media."""
        self.num_set_aside = 0
        """Sequences that have left the queue for a while, so far."""
        self.goes_on = False
        """Whether the worker computes extra steps without a plan for each."""
        self.holds_starts = False
        """Whether starts are paused for now."""
        self.prefix_reuse: PrefixReuse | None = None
        self.in_flight: deque[StepInFlight] = deque()
        """Steps that were sent, and are not settled, the oldest first."""
        self.suspect: Sequence | None = None
        """Runs alone, as a worker or an engine died while it ran."""
        self._forget_worker()

    def _forget_worker(self) -> None:
        self.free_slots = list(range(self.max_num_seqs - 1, -1, -1))
        self.released: list[int] = []  # slots that the worker doesn't know yet to be free
        self.last_step = 0  # number of the latest step that was planned
        self.last_was_alone = False  # a suspect had that step to itself

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.queue or self.in_flight)

    @property
    def num_running(self) -> int:
        """Sequences in slots that somebody has asked for."""
        return len(self.running) - (self.replayed is not None)

    def status(self) -> dict[str, Any]:
        """Returns the status of steps, slots and blocks for front ends: fields of Status."""
        pool, cache = self.pool, self.cache
        return {
            "running": self.num_running,
            "steps": self.num_steps,
            "preemptions": self.num_preemptions,
            "block_size": self.block_size,
            "blocks_total": 0 if pool is None else pool.num_blocks,
            "blocks_free": 0 if pool is None else pool.num_free,
            "blocks_cached": 0 if cache is None else cache.num_cached,
            "host_blocks": 0 if cache is None else cache.num_host_blocks,
        }

    @property
    def num_in_flight(self) -> int:
        """Steps that were sent, and are not settled."""
        return len(self.in_flight)

    @property
    def last_settled(self) -> int:
        """Number of the latest step that is settled; steps are settled in order."""
        return self.in_flight[0].number - 1 if self.in_flight else self.last_step

    def step_holds(self, start: int, end: int) -> bool:
        """Whether the whole pool holds a sequence with `end` tokens while those from `start` on are
        computed in one step; they may begin and end within a block. True without a worker."""
        pool, fresh = self.pool, end - start + self.block_size
        return pool is None or self.kv_groups.needed(end, fresh) <= pool.num_blocks

    @property
    def pool(self) -> BlockPool | None:
        return None if self.cache is None else self.cache.pool

    def attach(
        self,
        num_blocks: int,
        host_blocks: int,
        copy_seconds: float,
        groups: tuple[KVGroup, ...],
        *,
        whole_spans: bool = False,
    ) -> None:
        """A worker is ready, with empty pools of that many blocks. whole_spans: see Ready."""
        self.whole_spans = whole_spans
        self.cache = KVCache(num_blocks, self.block_size, host_blocks, self._session_share)
        self.kv_groups = KVGroups(self.block_size, groups)
        self.prefix_reuse = PrefixReuse(
            self.cache, self.kv_groups, self.budget, whole_spans=whole_spans
        )
        self.capacity = self.kv_groups.longest(num_blocks, self._max_model_len)
        self.longest = min(self._max_model_len, self.capacity)
        self._resume.attach(host_blocks, copy_seconds)

    def shrink(self) -> bool:
        """A step took more memory than there is: from now on they are half as large. Whether that
        could be; a step has LEAST_BUDGET tokens at least, and as many as a block."""
        smaller = max(self.budget // 2, self.LEAST_BUDGET, self.block_size)
        if smaller >= self.budget:
            return False
        self.budget = self._resume.budget = smaller
        return True

    def detach(self) -> dict[Sequence, int]:
        """The worker is gone, and its KV with it. Everything that ran waits again.

        Returns the sequences that were in a step in flight, or needed what it encoded, and live;
        each with the tokens that would have been computed of it.
        """
        scheduled: dict[Sequence, int] = {}
        for step in self.in_flight:
            for sequence, _, _ in step.items:
                progress = sequence.progress
                if not sequence.finished:
                    end = progress.scheduled + progress.drafts
                    scheduled[sequence] = max(end, scheduled.get(sequence, 0))
                progress.in_flight = progress.drafts = 0
            for sequence, end in step.media.needed_by.items():
                if not sequence.finished:
                    scheduled[sequence] = max(end, scheduled.get(sequence, 0))
        self.in_flight.clear()
        self.num_released += 1
        for sequence in [*self.running.values(), *self.marked.values()]:
            self._vacate(sequence)
            if not sequence.finished:
                sequence.move(SequenceState.WAITING)
                sequence.forget_computed()
                self.queue.push(sequence)
        self.running.clear()
        self.marked.clear()
        self.leaving.clear()
        self.suspect = None
        if self.cache is not None:
            self.cache.retention.forget_all()
        self.cache = self.prefix_reuse = self.capacity = None
        self.longest = self._max_model_len
        self._forget_worker()
        return scheduled

    def add(self, sequence: Sequence) -> None:
        """A new sequence, WAITING."""
        self.policy.joined(sequence)
        self.queue.push(sequence)

    def withdraw(self, sequence: Sequence) -> None:
        """Takes a waiting sequence out, to be added again when it may run."""
        self.queue.remove(sequence)
        self.policy.left(sequence)

    def set_aside(self, sequence: Sequence) -> None:
        """Takes a waiting sequence out of the queue, which comes back to it by `queue.push`. It has
        neither left the policy nor been served."""
        self.queue.remove(sequence)
        self.num_set_aside += 1
        if not sequence.request.num_queued:
            self.queue.departed -= 1

    def finish(self, sequence: Sequence, state: SequenceState) -> None:
        """Ends a sequence in whatever live state it is. Raises IllegalTransition."""
        aside = sequence.state in SET_ASIDE
        sequence.move(state)
        slot = sequence.slot
        known = bool(sequence.ticket) or slot is not None or aside
        if sequence.ticket:
            self.queue.remove(sequence)
        if known and sequence is not self.replayed:
            self.policy.left(sequence)
        if slot is None:
            return
        self._leave_running(sequence, slot)
        if sequence.progress.in_flight:
            self.marked[slot] = sequence
        else:
            self._release(sequence)

    def verify(self, result: Result, vocab_size: int) -> StepInFlight:
        """The oldest step in flight; UnfitResult unless `result` answers it, item for item."""
        if not self.in_flight:
            raise UnfitResult(f"a result for step {result.step}, but no step is in flight")
        self.in_flight[0].verify(result, vocab_size)
        return self.in_flight[0]

    def apply(self, result: Result, gap: float = 0.0) -> list[tuple[Sequence, SlotResult]]:
        """Settles the oldest step in flight; `verify` has been called.

        gap: seconds that the step took beyond what the worker computed.  Returns the sequences that
        have new tokens (appended already), log-probabilities of their prompt, or an error, in the
        plan's order.  The caller decides which of them end, and has left out what comes after.
        """
        step = self.in_flight[0]
        self._lessons.settled(step, result, gap)
        for feature in self.features.settling:
            feature.settled(step.media, result.encode_seconds)
        advanced: list[tuple[Sequence, SlotResult]] = []
        drafts = step.drafts
        for (sequence, end, _), outcome in zip(step.items, result.slots, strict=True):
            progress = sequence.progress
            progress.in_flight -= 1
            if drafts or step.extra_steps:
                progress.drafts -= step.room(outcome.slot)
            if sequence.state is not SequenceState.RUNNING:
                if not progress.in_flight and sequence.slot is not None:
                    del self.marked[sequence.slot]
                    self._release(sequence)
                continue
            if outcome.error is not None:
                advanced.append((sequence, outcome))
                continue
            sequence.prompt_reported += len(outcome.prompt_logprobs or ())
            if outcome.deferred:
                if self._defer(sequence, end + progress.kept):
                    advanced.append((sequence, _too_slow(outcome)))
                elif outcome.prompt_logprobs:
                    advanced.append((sequence, outcome))
                continue
            if outcome.token is not None:
                sequence.append(outcome.token, outcome.more)
                if outcome.proposed or outcome.more or sequence.drafts is not None:
                    self._lessons.sampled(step, sequence, outcome)
            progress.settle(end + progress.kept)
            if self.prefix_reuse is not None:
                self.prefix_reuse.computed(sequence)
            for feature in self.features.computing:
                feature.computed(sequence)
            if outcome.token is not None or outcome.prompt_logprobs:
                advanced.append((sequence, outcome))
        suspect = self.suspect if step.alone else None
        if suspect is not None and suspect.progress.computed >= suspect.suspect_until:
            FaultAttribution.passed(suspect)
            self.suspect = None
        # Last: a step that can't be applied is still in flight when the books are built again.
        self.in_flight.popleft()
        self.num_steps += 1
        return advanced

    def _defer(self, sequence: Sequence, end: int) -> bool:
        """A step up to `end` gave no token. Whether that was so too often in a row."""
        progress = sequence.progress
        progress.defer(end)
        return progress.deferrals >= self.MAX_DEFERRALS + progress.replayed

    def preempt(self, victim: Sequence) -> None:
        if victim.slot is None or victim.table is None or self.cache is None:
            raise ValueError(f"sequence {victim.index} of {victim.request.name} holds no slot")
        self._leave_running(victim, victim.slot)
        if self._resume.recomputes(victim):
            self.cache.forget_private(victim.table.blocks)
        self._release(victim)
        victim.move(SequenceState.PREEMPTED)
        victim.forget_computed()
        victim.num_preemptions += 1
        self.queue.push(victim)
        self.num_preemptions += 1

    def _leave_running(self, sequence: Sequence, slot: int) -> None:
        del self.running[slot]
        self.leaving.pop(slot, None)
        if self.prefix_reuse is not None:
            self.prefix_reuse.left(sequence)
        for feature in self.features.leaving:
            feature.left(sequence)
        if sequence is self.suspect:
            self.suspect = None

    def _release(self, sequence: Sequence) -> None:
        """The one place where a slot and its blocks become free."""
        if sequence.table is None or sequence.slot is None or self.cache is None:
            raise ValueError(f"sequence {sequence.index} of {sequence.request.name} holds no slot")
        sequence.table.release(self.cache, sequence.request.kv_session)
        self.free_slots.append(sequence.slot)
        self.released.append(sequence.slot)
        self.num_released += 1
        self._vacate(sequence)

    def occupy(self, sequence: Sequence, slot: int) -> None:
        """The one place where a sequence gets a slot."""
        sequence.slot = slot
        self.running[slot] = sequence
        sequence.request.num_running += 1
        for feature in self.features.occupying:
            feature.occupied(sequence)
        self._moved[sequence.request] = None

    def _vacate(self, sequence: Sequence) -> None:
        sequence.slot = sequence.table = None
        for feature in self.features.vacating:
            feature.vacated(sequence)
        sequence.request.num_running -= 1
        self._moved[sequence.request] = None

    def take_moved(self) -> list[Request]:
        """Requests of which the first sequence has got a slot, or the last has lost it, since this
        was asked last."""
        moved = [r for r in self._moved if r.reported_running != bool(r.num_running)]
        self._moved.clear()
        for request in moved:
            request.reported_running = bool(request.num_running)
        return moved


def _too_slow(outcome: SlotResult) -> SlotResult:
    error = (
        f"the mask of the request's grammar was late {SchedulerState.MAX_DEFERRALS} steps in a "
        "row: the grammar is too ambiguous or too complex"
    )
    return msgspec.structs.replace(outcome, error=error, error_code="complex_grammar")
