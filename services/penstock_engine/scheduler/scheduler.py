"""Which tokens the next step computes.

Charter: this file knows tokens, blocks and slots.  What differs between deployments (order,
admission, preemption, shares) comes in as policy objects.  No feature adds a branch to `plan`.
"""

from __future__ import annotations

from penstock.config.settings import SchedulerSettings
from penstock.protocol.to_worker import Plan
from penstock_engine.kv.cache import KVCache
from penstock_engine.kv.table import BlockTable
from penstock_engine.policies.policy import Turn
from penstock_engine.request.request import Sequence
from penstock_engine.request.states import SequenceState
from penstock_engine.request.step_builder import StepBuilder
from penstock_engine.request.step_in_flight import NO_MEDIA
from penstock_engine.scheduler.drafting import Drafter
from penstock_engine.scheduler.multi_step import MultiStep
from penstock_engine.scheduler.prefix_reuse import Start
from penstock_engine.scheduler.starts import StartFinder
from penstock_engine.scheduler.state import SchedulerState


class Scheduler:
    """Decides what each step computes. The state that it decides on is SchedulerState, which also
    takes in the steps' results.

    `plan` may be called while steps are in flight: the next one is sent before their results are
    known, so that the worker never waits for it.  Without a worker there is no block pool; `plan`
    returns None then, and sequences wait.

    whole: whether each sequence is computed in one step, never in chunks.
    """

    FOLLOWED_TOKENS = 512
    FOLLOWED_SECONDS = 0.1
    """After a step of more tokens that also takes longer (seconds), the next one is planned only
    once its result is there: the pause is short compared to the step, and a request that arrives
    meanwhile would otherwise have to wait for both."""

    def __init__(
        self,
        state: SchedulerState,
        settings: SchedulerSettings,
        *,
        whole: bool = False,
        drafter: Drafter | None = None,
    ) -> None:
        self.state = state
        self._starts = StartFinder(state)
        self._drafter = drafter or Drafter(state)
        self._multi_step = MultiStep(state, self._drafter)
        self._whole = whole
        self._max_in_flight = settings.max_steps_in_flight
        self._max_carried = settings.max_carried_tokens

    def plan(self) -> Plan | None:
        """The next step, or None: enough are in flight, there is no worker, or nothing to do.

        The one invariant.  A sequence will have `expected` tokens (prompt and emitted) once every
        step in flight is settled, and its KV lags: scheduled <= expected (see
        SequenceProgress).  A step gives a sequence `count` of the step's token budget and moves
        `scheduled` up by as much; when that reaches `expected` the step also samples a token, so
        `expected` moves one ahead and the chase goes on.  The worker holds that token by the time
        the next step needs it, whether or not its number has been seen here.  Nothing else happens
        to a sequence that runs: a long prompt taken in chunks, a prompt, a decode and the
        recomputation after a preemption are all this, and differ only in how far `scheduled` is
        below `expected`.

        Decodes (one token to compute) are served first, within a limit that leaves prefill its
        share; then what has started, in order; then waiting sequences, strictly in order, while
        slots, blocks and budget last; then decodes that the limit had kept out; then drafts, after
        the newest tokens of sequences that have all of theirs in the step.
        """
        if self.state.cache is None or (self.state.in_flight and not self._may_follow()):
            return None
        for sequence in [s for s in self.state.leaving.values() if not s.progress.in_flight]:
            self.state.preempt(sequence)
        budget = self.state.policy.budget(self.state.budget, self._ahead())
        if not budget or self._await_room():
            return None
        features = self.state.features
        for feature in features.preparing:
            feature.begin_step()
        builder = StepBuilder(budget, self._max_carried)
        if not self._fill(builder):
            return None
        self._drafter.allot(builder)
        self._multi_step.allot(builder)
        self.state.last_was_alone = builder.alone
        self.state.last_step += 1
        media = NO_MEDIA
        for feature in features.taking:
            media = feature.take_media()
        plan, step = builder.commit(
            self.state.last_step,
            self.state.released,
            self.state.cache.take_copies(),
            media,
            wants_proposed=bool(builder.drafts) or self._drafter.wants_proposed(builder),
            saves=self.state.cache.take_saves(),
            rests=self._drafter.rests(builder),
        )
        self.state.released = []
        self.state.in_flight.append(step)
        return plan

    def _fill(self, builder: StepBuilder) -> bool:
        """Gives the step to a suspect alone or to the others, in alternation. Repeats that if
        nothing was scheduled because the head of the queue left it to wait for an adapter or
        media. Returns whether the step computes anything."""
        turns = [self._run_suspect, self._run_others]
        if self.state.last_was_alone:
            turns.reverse()
        aside = -1
        while aside != self.state.num_set_aside:
            aside = self.state.num_set_aside
            for run in turns:
                run(builder)
                if not self._is_empty(builder):
                    return True
        for feature in self.state.features.filling:
            feature.fill(builder)
        return not self._is_empty(builder)

    def _is_empty(self, builder: StepBuilder) -> bool:
        """Whether the step computes neither tokens nor encodings of media."""
        return not builder.items and not self.state.features.encodes()

    def _may_follow(self) -> bool:
        """Whether one more step may be sent after those in flight.

        While there is a suspect, steps go one at a time, so that a death points to one step.
        """
        if len(self.state.in_flight) >= self._max_in_flight or self.state.short is not None:
            return False  # A sequence that needs a longer step gets it once no other is in flight.
        if self.state.in_flight[-1].alone or self.state.suspect is not None:
            return False
        head = self.state.queue.head()
        if head is not None and head.suspect_until:
            return False
        return self._is_short() and not self._multi_step.wanted()

    def _is_short(self) -> bool:
        """Whether the latest step is short enough to be followed."""
        tokens, rows = self.state.in_flight[-1].tokens, self.state.in_flight[-1].media.rows
        return tokens + rows <= self.FOLLOWED_TOKENS or (
            not rows and self.state.step_cost.within(tokens, self.FOLLOWED_SECONDS)
        )

    def _ahead(self) -> int:
        """Number of tokens in the steps in flight, which are computed before the next step's."""
        return sum(step.tokens for step in self.state.in_flight)

    def _computable(self, sequence: Sequence) -> int:
        """How many tokens of the sequence the next step may compute. The newest token isn't
        computed if no other may follow it. With a grammar, it is 0 while a token is being sampled,
        because the worker may defer that token until its mask is there."""
        progress = sequence.progress
        expected = progress.expected
        if sequence.request.grammar is not None and expected > progress.tokens:
            return 0
        furthest = expected + progress.drafts
        last = furthest >= sequence.most_tokens or furthest >= self.state.longest
        return expected - last - progress.scheduled

    def _runnable(self) -> tuple[list[Sequence], list[Sequence]]:
        """The running sequences with tokens to compute: (those with one token, those with more)."""
        decodes: list[Sequence] = []
        chunks: list[Sequence] = []
        leaving, apart = self.state.leaving, (self.state.suspect, self.state.replayed)
        for slot, sequence in self.state.running.items():
            missing = self._computable(sequence)
            if missing and sequence not in apart and slot not in leaving:
                (decodes if missing == 1 else chunks).append(sequence)
        return decodes, chunks

    def _run_others(self, builder: StepBuilder) -> None:
        self._run_short(builder)
        decodes, chunks = self._runnable()
        can_start = bool(self.state.queue and self.state.free_slots)
        for turn in self.state.policy.turns(decodes, chunks, builder, can_start=can_start):
            if turn.sequence is None:
                self._admit(builder, turn)
            else:
                self._extend(turn.sequence, builder, turn.most)

    def _run_short(self, builder: StepBuilder) -> None:
        """Serves first the sequence that the latest step was too short for, if there was one."""
        short, self.state.short = self.state.short, None
        if short is None or short is self.state.suspect:
            return  # A suspect is computed in a step of its own.
        if short.slot is not None:
            self._extend(short, builder)
        elif short.ticket:
            self._admit(builder, Turn(None, builder.left))

    def _schedule(
        self, sequence: Sequence, builder: StepBuilder, start: int, end: int, new_blocks: list[int]
    ) -> None:
        """Adds tokens [start, end) of a sequence to the step, and has the policy charge for
        them."""
        builder.schedule(sequence, start, end, new_blocks)
        if sequence.table is None:
            return
        samples = end == sequence.progress.expected
        decodes = samples and end - start == 1 and start >= len(sequence.request.prompt_token_ids)
        served = sequence.progress.last_step
        steps = self.state.last_step + 1 - served if served else 1
        held = sequence.table.num_blocks * steps
        computed = 0 if decodes else end - start
        for feature in self.state.features.charging:
            computed += feature.take_cost(sequence)
        self.state.policy.charge(sequence, computed, int(samples), held)

    def _extend(self, sequence: Sequence, builder: StepBuilder, most: int | None = None) -> None:
        """Schedules as many of a running sequence's tokens as budget and blocks allow, at most
        `most`."""
        table, cache = sequence.table, self.state.cache
        left = builder.left if most is None else min(most, builder.left)
        if table is None or cache is None or sequence.slot in self.state.leaving or not left:
            return  # Preempted earlier in this plan, or the budget is spent.
        if sequence.slot in builder.items:
            return  # Preempted earlier in this plan, and started again in it.
        start = sequence.progress.scheduled
        end = min(start + self._computable(sequence), start + left)
        if end > start + 1:
            end = min(end, start + builder.most(sequence))
        end = self.state.features.end(sequence, start, end)
        if end <= start:
            self.state.features.unscheduled(sequence)
            return
        drafts = sequence.progress.drafts
        room = table.capacity - drafts
        if end <= room:
            self._schedule(sequence, builder, start, end, [])
            return
        least = start + self.state.features.least(sequence, start)
        while room + self._room_to_grow(cache, table) < least:
            # The blocks of one preempted sequence may be fewer than a checkpoint takes.
            if not self._make_room(sequence, builder):
                builder.wanting = True
                break
        end = min(end, room + self._room_to_grow(cache, table))
        end = self.state.features.end(sequence, start, end)
        if end > start:
            self._schedule(sequence, builder, start, end, table.grow(cache, end + drafts))
        else:
            self.state.features.unscheduled(sequence)

    def _room_to_grow(self, cache: KVCache, table: BlockTable) -> int:
        """How many tokens the table could grow by with the free blocks, in every KV group."""
        return self.state.kv_groups.room(table, cache.pool.num_free)

    def _make_room(self, needy: Sequence, builder: StepBuilder) -> bool:
        """Preempts a sequence of the policy's choice, at once or as soon as no step in flight
        refers to it. Returns whether blocks may have become free."""
        if self.state.leaving:
            return False  # A sequence is leaving already; its blocks will be free.
        # The worker doesn't know the sequences that start in this plan yet.
        known = [
            sequence for sequence in self.state.running.values() if not builder.starts(sequence)
        ]
        victim = self.state.policy.victim(known, needy)
        if victim is None or victim.slot is None:
            return False
        builder.withdraw(victim)
        self.state.features.unscheduled(victim)
        if victim.progress.in_flight:
            self.state.leaving[victim.slot] = victim
            return False
        self.state.preempt(victim)
        return True

    def _admit(self, builder: StepBuilder, turn: Turn) -> None:
        """Starts waiting sequences, strictly in order, as far as the turn allows.

        None starts while a running sequence lacks blocks: it would lose every block that becomes
        free to the next one that starts. A sequence that was preempted in this plan doesn't start
        again in it: it needs at least the blocks that it gave up, and some of those are taken.
        """
        if builder.wanting:
            return
        least = builder.left - min(turn.most, builder.left)
        while builder.left > least:
            head = self.state.queue.head(turn.tenant)
            if head is None or head.suspect_until:
                return
            if turn.before is not None and not self.state.policy.precedes(head, turn.before):
                return
            if not builder.can_carry(head) or not builder.most(head):
                return
            start = self._starts.fits(head)
            if start is None:
                self.state.queue.hold(head)
                return
            most = builder.left - least
            if self._whole:
                # It is computed in this step entirely, whatever the turn says. If steps are kept
                # short, none might have room for a long one, which therefore gets its own step.
                if not builder.items:
                    builder.reach(head.num_tokens)
                if head.num_tokens > builder.left:
                    return
                most = builder.left
            if not self.state.features.may_start(head, start.computed):
                continue
            if not self._start(head, start, builder, most):
                self.state.queue.hold(head)
                return

    def _await_room(self) -> bool:
        """Preempts running sequences for the head of the queue, if the policy does such a thing.

        Returns whether no step may be sent until those that must leave are in no step in flight.
        """
        if not self.state.policy.makes_way or self.state.suspect is not None:
            return False
        head = self.state.queue.head()
        while head is not None and not self.state.features.admits(head):
            head = self.state.queue.head()
        if head is None or head.suspect_until:
            return False
        shortage = self._starts.shortage(head)
        if shortage is None:
            return False
        staying = [s for slot, s in self.state.running.items() if slot not in self.state.leaving]
        for victim in self.state.policy.make_way(head, staying, shortage) or ():
            if victim.progress.in_flight and victim.slot is not None:
                self.state.leaving[victim.slot] = victim
            else:
                self.state.preempt(victim)
        return bool(self.state.leaving) and self._starts.missing(shortage.needed) <= 0

    def _start(self, sequence: Sequence, start: Start, builder: StepBuilder, most: int) -> bool:
        """most: tokens that it may compute in this step. Whether it may compute any, or what it
        waits for goes on."""
        if self.state.cache is None or self.state.prefix_reuse is None:
            return False
        missing = self._computable(sequence) - start.computed
        end = start.computed + min(missing, most, builder.most(sequence))
        features = self.state.features
        end = self.state.features.end(sequence, start.computed, end)
        if end <= start.computed and not any(f.begins(sequence) for f in features.beginning):
            for feature in features.not_starting:
                feature.not_started(sequence)
            return False
        self.state.queue.remove(sequence)
        sequence.move(SequenceState.RUNNING)
        swapped = self.state.cache.num_swapped_in
        sequence.table = self.state.prefix_reuse.table(sequence, start)
        self.state.occupy(sequence, self.state.free_slots.pop())
        sequence.tokens_at_start = sequence.num_tokens
        sequence.progress.start(start.computed)
        for feature in features.started:
            feature.started(sequence, start.computed)
        cached = min(start.computed, len(sequence.request.prompt_token_ids))
        if sequence.request.cached_tokens is None:
            sequence.request.cached_tokens = cached
            self.state.fresh_share.observe(len(sequence.request.prompt_token_ids), cached)
        if sequence.timeline is not None:
            sequence.timeline.found(cached, self.state.cache.num_swapped_in - swapped)
        room = sequence.table.capacity + self._room_to_grow(self.state.cache, sequence.table)
        if room < end:
            # Tokens that must be computed together have blocks or are refused, so `room` suffices.
            end = self.state.features.end(sequence, start.computed, room)
            end = end if end > start.computed else room
        sequence.table.grow(self.state.cache, end)
        builder.admit(sequence)
        if end > start.computed:
            self._schedule(sequence, builder, start.computed, end, [])
        return True

    def _run_suspect(self, builder: StepBuilder) -> None:
        """Gives the whole step to one suspect, if there is one.

        A sequence is no suspect any more once it has been computed, in steps of its own, beyond the
        token at which it was accused.
        """
        if self.state.suspect is not None:
            self._extend(self.state.suspect, builder)
        else:
            head = self.state.queue.head()
            start = self._starts.fits(head) if head is not None and head.suspect_until else None
            if head is None or start is None:
                return
            if not self.state.features.may_start(head, start.computed):
                return
            if not self._start(head, start, builder, builder.left):
                return
            self.state.suspect = head
        builder.alone = not self._is_empty(builder)
