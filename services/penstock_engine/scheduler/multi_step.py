"""Steps in which the worker goes on by itself: several tokens of each sequence for one plan."""

from __future__ import annotations

from penstock_engine.kv.table import joined
from penstock_engine.request.request import Request, Sequence
from penstock_engine.request.step_builder import StepBuilder
from penstock_engine.scheduler.drafting import Drafter
from penstock_engine.scheduler.starts import SpareRoom
from penstock_engine.scheduler.state import SchedulerState

SECONDS = 0.25
"""Most seconds that a step with extra steps is expected to take. Until it ends, the engine core
knows nothing of what was computed, which may be lost."""

MOST, LEAST = 15, 3
"""Most and least extra steps of a step. If there would be fewer, the next step is sent ahead
instead."""

MOST_ENDS = 64
"""Ids that a plan says end its sequences."""


class MultiStep:
    """Plans several tokens of each sequence at once (multi-step decoding) while only decodes run.

    On a CPU, messages, and what the engine core does for each, take processors from those that
    compute. So a plan is for several tokens as long as all sequences decode, no client reads their
    tokens as they come, and no sequence waits to start. No other step follows such a plan, and the
    first message that comes meanwhile ends it: a new request waits no longer than it would have.
    """

    def __init__(self, state: SchedulerState, drafter: Drafter) -> None:
        self._state = state
        self._drafter = drafter
        self._room = SpareRoom(state)

    def wanted(self) -> bool:
        """Whether the next step is to go on, and so to be planned when none is in flight."""
        state = self._state
        if not state.goes_on or state.queue or state.leaving or state.suspect is not None:
            return False
        if state.in_flight:
            latest = state.in_flight[-1]
            if latest.drafts:
                return False  # More drafts are likely to follow.
            if latest.extra_steps and state.marked:
                return False  # Some have ended: the plan for the others ends the step, too.
        running = state.running.values()
        return all(map(_may_go_on, running)) and self._most(len(running)) >= LEAST

    def allot(self, builder: StepBuilder) -> None:
        """Adds extra steps to a step that is otherwise complete."""
        state = self._state
        if state.in_flight or builder.alone or builder.drafts or not self.wanted():
            return
        items = builder.items.values()
        if len(items) < len(state.running) or not all(
            end - start == 1 and end == sequence.progress.expected
            for sequence, start, end, _ in items
        ):
            return
        ends = _ends({sequence.request for sequence, _, _, _ in items})
        if len(ends) <= MOST_ENDS:
            count = min(self._fitting(slot, builder) for slot in builder.items)
            if count > 0:
                builder.go_on(count, ends, self._drafter.least_proposed(builder))

    def _fitting(self, slot: int, builder: StepBuilder) -> int:
        """Tokens that a sequence has room for, after its table has got blocks for them."""
        state = self._state
        sequence, _, end, new_blocks = builder.items[slot]
        table, cache = sequence.table, state.cache
        if table is None or cache is None or builder.starts(sequence):
            return 0
        longest = min(sequence.most_tokens, state.longest)
        most = min(self._most(len(builder.items)), longest - end - 1)
        most = min(end + most, self._room.tokens(table, builder))
        if most > table.capacity:
            more = table.grow(cache, most)
            builder.give(slot, joined(new_blocks, more, len(table.held)))
        return most - end

    def _most(self, decodes: int) -> int:
        """Extra steps by how long each takes; 0: unknown."""
        policy = self._state.draft_policy
        seconds, most = policy.seconds(decodes), LEAST if policy.looking else MOST
        return min(most, int(SECONDS / seconds) - 1) if seconds > 0.0 else 0


def _may_go_on(sequence: Sequence) -> bool:
    """Whether it decodes, and only its end is waited for."""
    request, progress = sequence.request, sequence.progress
    return (
        request.gathered
        and request.grammar is None
        and request.pooling is None
        and progress.expected - progress.scheduled == 1
        and not sequence.reports_prompt
    )


def _ends(requests: set[Request]) -> list[int]:
    """Token ids that end any of the requests, sorted, whatever the order of the requests."""
    return sorted(frozenset().union(*(request.eos | request.stops for request in requests)))
