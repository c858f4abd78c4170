"""The policy `fcfs`: first come, first served."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from penstock.config.settings import SchedulerSettings
from penstock_engine.policies.order import LatestFirst, PriorityWithAgeing, QueueOrder
from penstock_engine.policies.pace import StepPace, pace_of
from penstock_engine.policies.policy import Policy, Turn
from penstock_engine.policies.tenants import Tenants
from penstock_engine.request.request import Sequence
from penstock_engine.request.step_builder import StepBuilder
from penstock_engine.waiting.queue import WaitingQueue


class OneLine(Policy):
    """A policy with one queue for all, in some order: decodes come before prefill, and the last in
    the order is preempted first."""

    def __init__(self, order: QueueOrder, pace: StepPace) -> None:
        self.order = order
        self.pace = pace
        self.queue = WaitingQueue(order)
        self._share = PrefillShare()
        self._latest = LatestFirst(order)

    def turns(
        self,
        decodes: list[Sequence],
        chunks: list[Sequence],
        builder: StepBuilder,
        *,
        can_start: bool,
    ) -> Iterator[Turn]:
        """Decodes come first, within a limit that leaves prefill its share; those that the limit
        keeps out come last.  Prefill has what keeps the step short enough for decodes."""
        limit = self._share.decode_limit(builder.left, prefill_pending=bool(chunks or can_start))
        if len(decodes) > limit:
            # Not all fit: those that were served least recently go first.
            decodes.sort(key=lambda sequence: sequence.progress.last_served)
        for sequence in decodes[:limit]:
            yield Turn(sequence, 1)
        builder.keep_to(self.pace.tokens(len(decodes)) - len(decodes[:limit]))
        yield from self._prefill(chunks, builder)
        builder.release()
        for sequence in decodes[limit:]:
            yield Turn(sequence, 1)

    def _prefill(self, chunks: list[Sequence], builder: StepBuilder) -> Iterator[Turn]:
        """Turns of those that run, in the order in which they started, then of those that wait."""
        for sequence in chunks:
            yield Turn(sequence, builder.left)
        yield Turn(None, builder.left)

    def precedes(self, one: Sequence, other: Sequence) -> bool:
        return self.order.key(one) < self.order.key(other)

    def victim(self, running: Collection[Sequence], needy: Sequence) -> Sequence | None:
        return self._latest.victim(running, needy)


class FirstCome(OneLine):
    """Serves requests in the order in which they were accepted, except those in the background:
    there are no other priorities."""

    name = "fcfs"

    @classmethod
    def make(cls, settings: SchedulerSettings, tenants: Tenants) -> FirstCome:
        return cls(PriorityWithAgeing(), pace_of(settings))


class PrefillShare:
    """Decodes are served first, but leave an eighth of the budget to prefill that waits for it.

    One eighth of a small budget is less than a token; what is owed adds up, so with a budget of
    one every eighth step is prefill's.  Decodes get back what prefill leaves over.
    """

    EIGHTHS = 1

    def __init__(self) -> None:
        self._owed = 0

    def decode_limit(self, budget: int, *, prefill_pending: bool) -> int:
        """Tokens of this step's `budget` that decodes may use before prefill has been served."""
        if not prefill_pending:
            return budget
        self._owed += budget * self.EIGHTHS
        reserved, self._owed = divmod(self._owed, 8)
        return budget - reserved
