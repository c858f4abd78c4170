"""A scheduling policy: who waits where, who gets what of a step, and who has to make way.

FirstCome is the policy `fcfs`, and what the others are where they say nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from penstock_engine.policies.order import FirstComeFirstServed, QueueOrder
from penstock_engine.policies.pace import StepPace
from penstock_engine.policies.preemption import LatestFirst
from penstock_engine.policies.shares import PrefillShare
from penstock_engine.request.request import Sequence
from penstock_engine.request.step_builder import StepBuilder
from penstock_engine.waiting.queue import Waiting, WaitingQueue


class Turn(NamedTuple):
    """Whose turn it is in a step: a running sequence's, or (None) that of those who wait.

    most: tokens of the step, together, for all whom this turn serves.
    tenant: only those of one tenant.  before: only those that come before it in the order.
    """

    sequence: Sequence | None
    most: int
    tenant: str | None = None
    before: Sequence | None = None


class Shortage(NamedTuple):
    """What the head of the queue lacks, when what is on its way to being free is counted as free.

    blocks, slots: at most 0 where nothing is lacking.  needed: blocks that it takes in all.
    """

    blocks: int
    slots: int
    needed: int


class FirstCome:
    """First come, first served; whoever came last gives way.

    ages: whether requests may ask for a priority.  makes_way: whether those that run may have to
    give way to one that waits.  keeps_tenants_apart: whether each tenant has a share of its own, of
    the waiting room and of the compiler of grammars too.
    """

    ages = False
    makes_way = False
    keeps_tenants_apart = False

    def __init__(self, order: QueueOrder | None = None, pace: StepPace | None = None) -> None:
        self.pace = pace or StepPace()
        self.order = order or FirstComeFirstServed()
        self.queue: Waiting = WaitingQueue(self.order)
        self._share = PrefillShare()
        self._latest = LatestFirst(self.order)

    # ---- books

    def joined(self, sequence: Sequence) -> None:
        """A new sequence; it is about to wait."""

    def left(self, sequence: Sequence) -> None:
        """A sequence that had joined has ended."""

    def charge(self, sequence: Sequence, prompt: int, generated: int, block_steps: int) -> None:
        """A step was planned that computes `prompt` tokens of the sequence and samples `generated`
        ones; it has held its blocks for so many block-steps since it was last served."""

    def debts(self) -> dict[str, float] | None:
        """By tenant, how much more it has been given than who has been given least, for its weight,
        in generated tokens; None: this policy keeps no accounts. For people, not for decisions."""
        return None

    # ---- a step

    def budget(self, budget: int, in_flight: int) -> int:
        """Tokens of a step of at most `budget`, with `in_flight` tokens sent before it; 0: none
        may follow now."""
        return budget

    def turns(
        self,
        decodes: list[Sequence],
        chunks: list[Sequence],
        builder: StepBuilder,
        *,
        can_start: bool,
    ) -> Iterator[Turn]:
        """Who is served in what order, by turns; what they take shows in `builder` in between.

        decodes: one token behind.  chunks: further behind.  can_start: somebody waits, and a slot
        is free.  Decodes come first, within a limit that leaves prefill its share; those that the
        limit keeps out come last.  Prefill has what keeps the step short enough for decodes.
        """
        limit = self._share.decode_limit(builder.left, prefill_pending=bool(chunks or can_start))
        if len(decodes) > limit:
            # Not all fit: those that were served least recently go first.
            decodes.sort(key=lambda sequence: sequence.last_work)
        for sequence in decodes[:limit]:
            yield Turn(sequence, 1)
        held = builder.keep_to(self.pace.tokens(len(decodes)) - len(decodes[:limit]))
        yield from self._prefill(chunks, builder)
        builder.left += held
        for sequence in decodes[limit:]:
            yield Turn(sequence, 1)

    def _prefill(self, chunks: list[Sequence], builder: StepBuilder) -> Iterator[Turn]:
        for sequence in chunks:
            yield Turn(sequence, builder.left)
        yield Turn(None, builder.left)

    def precedes(self, one: Sequence, other: Sequence) -> bool:
        """Whether `one` comes before `other` in the order."""
        return self.order.key(one) < self.order.key(other)

    # ---- room

    def victim(self, running: Collection[Sequence], needy: Sequence) -> Sequence | None:
        """Who of those that run gives up its blocks for `needy`; None: `needy` waits in place."""
        return self._latest.victim(running, needy)

    def make_way(
        self, head: Sequence, running: Iterable[Sequence], shortage: Shortage
    ) -> list[Sequence] | None:
        """Who gives up slot and blocks, so that the head of the queue can start; None: it waits.

        Asked only of a policy that makes way.  Enough of them or none.
        """
        return None


def enough(candidates: Iterable[Sequence], shortage: Shortage) -> list[Sequence] | None:
    """The first of the candidates whose room makes up for the shortage; None: all are too few."""
    taken: list[Sequence] = []
    blocks, slots = shortage.blocks, shortage.slots
    for sequence in candidates:
        if blocks <= 0 and slots <= 0:
            break
        taken.append(sequence)
        blocks -= len(sequence.table.blocks) if sequence.table is not None else 0
        slots -= 1
    return taken if blocks <= 0 and slots <= 0 else None
