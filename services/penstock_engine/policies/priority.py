"""The policy `priority`: the lower value first, ageing, and the right to preempt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.config.settings import SchedulerSettings
from penstock_engine.policies.first_come import OneLine
from penstock_engine.policies.order import PriorityWithAgeing
from penstock_engine.policies.pace import pace_of
from penstock_engine.policies.policy import Shortage, Turn, enough
from penstock_engine.policies.tenants import Tenants
from penstock_engine.request.request import Sequence
from penstock_engine.request.step_builder import StepBuilder


class ByPriority(OneLine):
    """Keys never change, so the first sequence in the order is never preempted, and finishes.

    A running sequence makes way for a waiting one only if it is of a worse priority, and comes
    after it even when ageing is counted: so they can't take turns in preempting each other.
    """

    name = "priority"
    ages = True
    makes_way = True

    @classmethod
    def make(cls, settings: SchedulerSettings, tenants: Tenants) -> ByPriority:
        return cls(PriorityWithAgeing(), pace_of(settings))

    def _prefill(self, chunks: list[Sequence], builder: StepBuilder) -> Iterator[Turn]:
        """Turns of all, in the order, whether they run or wait."""
        for sequence in sorted(chunks, key=self.order.key):
            yield Turn(None, builder.left, before=sequence)
            yield Turn(sequence, builder.left)
        yield Turn(None, builder.left)

    def make_way(
        self, head: Sequence, running: Iterable[Sequence], shortage: Shortage
    ) -> list[Sequence] | None:
        key = self.order.key
        mine, level = key(head), head.request.priority
        worse = [s for s in running if s.request.priority > level and key(s) > mine]
        worse.sort(key=key, reverse=True)
        return enough(worse, shortage)
