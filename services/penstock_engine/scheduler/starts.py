"""Whether the head of the queue can start, and how."""

from __future__ import annotations

from typing import NamedTuple

from penstock_engine.kv.groups import KVGroups
from penstock_engine.kv.table import BlockTable
from penstock_engine.policies.policy import Shortage
from penstock_engine.request.request import Sequence
from penstock_engine.request.step_builder import StepBuilder
from penstock_engine.scheduler.prefix_reuse import Start
from penstock_engine.scheduler.state import SchedulerState

LOOKED_AT_FIRST = 8
"""Waiting sequences that are looked at first, where many slots but few blocks are free."""

MAX_LOOK_STEPS = 32
"""Steps for which a look at the head of the queue counts: what it had found may be gone by then, or
more be there."""


class Look(NamedTuple):
    """How the head of the queue might start, when it was last looked for."""

    head: Sequence | None
    released: int  # SchedulerState.num_released then
    steps: int  # SchedulerState.num_steps then
    start: Start | None

    def holds(self, head: Sequence, released: int, steps: int) -> bool:
        """Whether nothing has become free since; a sequence that waits for others is tried again
        after each step."""
        age = steps - self.steps
        recent = age < MAX_LOOK_STEPS if self.start is not None else age == 0
        return recent and head is self.head and released == self.released


class Headroom:
    """Free blocks that must remain when a sequence starts while others run.

    Every running sequence may then grow by HORIZON tokens before blocks run out, so that what was
    just started isn't preempted at once.
    """

    HORIZON = 4

    def blocks(self, num_running: int, groups: KVGroups) -> int:
        return groups.headroom(num_running * self.HORIZON)


def next_starts(state: SchedulerState) -> list[Sequence]:
    """Waiting sequences for which a slot and blocks are free, in order: they start in the next
    steps, without waiting for others to end. What they share with others is not counted, so there
    may be more of them."""
    most = len(state.free_slots) if state.pool is not None and state.suspect is None else 0
    looked = min(LOOKED_AT_FIRST, most)
    while True:
        found = _fitting(state, state.queue.first(looked))
        if len(found) < looked or looked == most:
            return found
        looked = min(4 * looked, most)


def _fitting(state: SchedulerState, heads: list[Sequence]) -> list[Sequence]:
    """Returns the first heads of the queue, as many as free blocks let start in addition to what
    runs."""
    headroom, groups = Headroom(), state.kv_groups
    free = 0 if state.pool is None else state.pool.num_free
    found: list[Sequence] = []
    for sequence in heads:
        free -= groups.needed(sequence.num_tokens + 1)
        others = len(state.running) + len(found)
        if sequence.suspect_until or free < headroom.blocks(others, groups):
            break
        found.append(sequence)
    return found


class StartFinder:
    """Looks for a slot and blocks, and remembers what it found while nothing becomes free."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._headroom = Headroom()
        self._look = Look(None, 0, 0, None)

    def fits(self, head: Sequence) -> Start | None:
        """How `head` may start: with a slot, and the blocks; None: it may not."""
        if self._state.holds_starts or not self._state.free_slots:
            return None
        if self._is_known(head) and self._in_vain(self._look.start):
            return None
        start = self._find(head)
        return None if self._in_vain(start) else start

    def shortage(self, head: Sequence) -> Shortage | None:
        """What `head` lacks to start; None: it can, or should wait for what others compute."""
        if self._state.holds_starts:
            return None
        start = self._look.start if self._is_known(head) else self._find(head)
        state = self._state
        if start is None or (state.free_slots and not self._in_vain(start)):
            return None
        return Shortage(
            blocks=self.missing(start.needed),
            slots=1 - len(state.free_slots) - len(state.leaving),
            needed=start.needed,
        )

    def missing(self, needed: int) -> int:
        """Blocks that a start with `needed` free ones still lacks once those that are leaving have
        left, and share none."""
        state = self._state
        if state.pool is None:
            return 0
        coming = sum(s.table.num_blocks for s in state.leaving.values() if s.table is not None)
        others = len(state.running) - len(state.leaving)
        return self._needed(needed, others) - state.pool.num_free - coming

    def _needed(self, own: int, others: int) -> int:
        """Returns how many blocks must be free for a sequence to start while others run: its own,
        and what those may soon need.

        A running sequence has the blocks for the tokens that it has: budget is left for a newcomer
        only when all that have started are served.
        """
        headroom = self._headroom.blocks(others, self._state.kv_groups) if others else 0
        return own + headroom

    def _in_vain(self, start: Start | None) -> bool:
        """Whether there are too few blocks for such a start, or it isn't to be yet."""
        pool = self._state.pool
        if start is None or pool is None:
            return True
        return self._needed(start.needed, len(self._state.running)) > pool.num_free

    def _is_known(self, head: Sequence) -> bool:
        """Whether the last look for the head's blocks still holds. To look for a long prompt's
        blocks takes milliseconds, and a head may wait for many steps."""
        return self._look.holds(head, self._state.num_released, self._state.num_steps)

    def _find(self, head: Sequence) -> Start | None:
        """How it may start now."""
        state = self._state
        start = None if state.prefix_reuse is None else state.prefix_reuse.find(head)
        self._look = Look(head, state.num_released, state.num_steps, start)
        return start


class SpareRoom:
    """Blocks are given as long as no sequence waits for some and enough are left for those that
    run."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._headroom = Headroom()

    def tokens(self, table: BlockTable, builder: StepBuilder) -> int:
        """Tokens that a table has, or may get, room for."""
        state = self._state
        if state.pool is None or state.queue or builder.wanting or state.leaving:
            return table.capacity
        kept = self._headroom.blocks(len(state.running), state.kv_groups)
        return table.capacity + state.kv_groups.room(table, max(0, state.pool.num_free - kept))
