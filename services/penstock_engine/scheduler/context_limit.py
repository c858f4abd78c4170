"""How long a sequence may get at present."""

from __future__ import annotations

from penstock_engine.scheduler.state import SchedulerState


class ContextLimit:
    """The model's context, or what the whole pool of the present worker holds, if that is less."""

    def __init__(self, longest_sequence: int, scheduling: SchedulerState) -> None:
        self._longest = longest_sequence
        self._scheduling = scheduling

    @property
    def tokens(self) -> int:
        """Prompt and output. Without a worker the pool is unknown, and the model's limit stands."""
        capacity = self._scheduling.capacity
        return self._longest if capacity is None else min(self._longest, capacity)

    @property
    def words(self) -> str:
        """What sets the limit, to be followed by the number of tokens."""
        pool = self._scheduling.pool
        if pool is None or self.tokens == self._longest:
            return "the model's context is"
        size = self._scheduling.block_size
        return f"the whole KV pool ({pool.num_blocks} blocks of {size} tokens) holds"
