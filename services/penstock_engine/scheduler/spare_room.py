"""KV blocks for tokens that a sequence need not have."""

from __future__ import annotations

from penstock_engine.kv.table import BlockTable
from penstock_engine.request.step_builder import StepBuilder
from penstock_engine.scheduler.starts import Headroom
from penstock_engine.scheduler.state import SchedulerState


class SpareRoom:
    """Blocks are given as long as nobody waits for some and enough are left for those that run."""

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
