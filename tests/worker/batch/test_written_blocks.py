"""Which blocks a plan may write to."""

from __future__ import annotations

from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import NO_BLOCK, Copy, NewSequence, Plan, SlotWork
from penstock_worker.batch.written_blocks import copied_to, written_by

PLAIN = TokenSampling(seed=1)


def test_a_cached_prefix_is_only_read() -> None:
    new = NewSequence(0, [1] * 11, 11, 0, PLAIN, [1, 2, 3])
    assert set(written_by(Plan(1, 0, [], [new], [SlotWork(0, 8, 3)]), 4, 1)) == {3}
    assert set(written_by(Plan(1, 0, [], [new], [SlotWork(0, 6, 5)]), 4, 1)) == {2, 3}
    assert set(written_by(Plan(1, 0, [], [new], []), 4, 1)) == {1, 2, 3}


def test_each_group_has_a_table() -> None:
    new = NewSequence(0, [1] * 9, 9, 0, PLAIN, [1, 2, 3, NO_BLOCK, 5, 6])
    assert set(written_by(Plan(1, 0, [], [new], [SlotWork(0, 4, 5)]), 4, 2)) == {2, 3, 5, 6}


def test_growth_copies_and_checkpoints() -> None:
    copies = [Copy("out", 1, 0), Copy("in", 0, 2), Copy("device", 1, 3)]
    assert set(copied_to(copies)) == {2, 3}
    new = NewSequence(0, [1] * 9, 9, 0, PLAIN, [4, 5, 6], states=[7], tail=[8], tail_at=3)
    work = [SlotWork(0, 0, 9), SlotWork(1, 20, 1, new_blocks=[9], states=[10])]
    plan = Plan(1, 0, [], [new], work, copies)
    assert set(written_by(plan, 4, 1)) == set(range(2, 11))
