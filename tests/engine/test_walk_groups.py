"""Random histories of models with several KV groups, some of which forget what is behind a
window."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.kv_layout import FULL, KVGroup
from tests.engine.test_walk import Drawn, Seeded
from tests.engine.walker import Choices, Walker, make_harness


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


class GroupWalker(Walker):
    """Each worker of the walk has the same groups, as it has the same model."""

    def __init__(self, choose: Choices) -> None:
        super().__init__(make_harness(choose), choose)
        size = self.h.facts.config.cache.kv_block_size
        self.h.kv_groups = drawn_groups(choose, size)

    def _pool_size(self) -> int:
        return len(self.h.kv_groups) * super()._pool_size()

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
            assert table.first == [group.first_seen(whole) // size for group in self.h.kv_groups]


def walked(choose: Choices, operations: int) -> GroupWalker:
    walker = GroupWalker(choose)
    walker.connect()
    for _ in range(operations):
        walker.walk()
    return walker


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.integers(1, 60))
def test_short_histories(data: st.DataObject, length: int) -> None:
    walked(Drawn(data), length).end()


def test_long_histories_and_that_they_meet_what_they_are_for() -> None:
    met = Counter[str]()
    for seed in range(10):
        walker = walked(Seeded(seed), 300)
        walker.end()
        met += walker.met
        met["preempted"] += walker.h.core.state.scheduling.num_preemptions
        met["reused"] += walker.h.num_reused
    assert met["forgotten"] > 5000
    assert met["preempted"] > 5
    assert met["reused"] > 500
