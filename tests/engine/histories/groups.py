"""Random histories of models with several KV groups, some of which forget what is behind a
window, and of some with recurrent layers."""

from __future__ import annotations

from collections.abc import Callable

from penstock.model.kv_layout import FULL, ONE_GROUP, KVGroup, paged, state_of
from tests.engine.walked_harness import Choices, make_harness
from tests.engine.walker import Walker

Drawing = Callable[[Choices, int], tuple[KVGroup, ...]]


def one_group(choose: Choices, size: int) -> tuple[KVGroup, ...]:
    """The one group of most models."""
    return ONE_GROUP


def drawn_groups(choose: Choices, size: int) -> tuple[KVGroup, ...]:
    """One to three groups, most of which forget."""
    kinds = (
        FULL,
        KVGroup(window=choose.whole(1, 12)),
        KVGroup(window=choose.whole(1, 12)),
        KVGroup(chunk=size * choose.whole(1, 4)),
    )
    chosen = [kinds[choose.whole(0, 3)] for _ in range(choose.whole(1, 3))]
    return tuple(sorted(chosen, key=lambda group: group.forgets))


def drawn_with_states(choose: Choices, size: int) -> tuple[KVGroup, ...]:
    """One or two groups, and that of recurrent layers."""
    window = KVGroup(window=choose.whole(1, 12))
    chosen = ((FULL,), (FULL, window), (window,))[choose.whole(0, 2)]
    return (*chosen, KVGroup(every=size * choose.whole(1, 4), blocks=choose.whole(1, 3)))


class GroupWalker(Walker):
    """Each worker of the walk has the same groups, as it has the same model."""

    def __init__(self, choose: Choices, drawn: Drawing = drawn_groups) -> None:
        super().__init__(make_harness(choose), choose)
        size = self.h.facts.config.cache.kv_block_size
        self.h.kv_groups = drawn(choose, size)

    def _pool_size(self) -> int:
        states = state_of(self.h.kv_groups)
        room = 0 if states is None else 2 * states.blocks
        return len(paged(self.h.kv_groups)) * super()._pool_size() + room

    def step(self) -> None:
        super().step()
        for sequence in self.h.core.state.scheduling.running.values():
            table = sequence.table
            assert table is not None
            self.met["forgotten"] += sum(table.first)
            if sequence.progress.deferrals:
                continue  # What was computed is made known by the next step that gives a token.
            size = table.block_size
            whole = sequence.progress.computed // size * size
            groups, states = paged(self.h.kv_groups), state_of(self.h.kv_groups)
            assert table.first == [group.first_seen(whole) // size for group in groups]
            if states is not None and states.every is not None:
                assert table.checkpoints is not None
                # The newest that is computed, and those that there is room for.
                due = table.capacity // states.every - max(1, whole // states.every) + 1
                start = table.checkpoints.tokens_found
                # A tail before the first of them is held until it has been read.
                due += 0 < start < states.every and start == sequence.progress.computed
                assert len(table.checkpoints.held) == due
                self.met["checkpoints"] += due
