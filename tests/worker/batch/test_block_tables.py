"""One array of block tables against a list for each slot."""

from __future__ import annotations

import random

import numpy as np

from penstock_worker.batch.block_tables import BlockTables, joined_tables, write_tables


def test_against_lists() -> None:
    rng = random.Random(1)
    tables, held = BlockTables(5), {slot: list[int]() for slot in range(5)}
    for _ in range(200):
        slot = rng.randrange(5)
        if rng.random() < 0.1:
            held[slot] = []
        new = rng.sample(range(10**6), rng.randrange(1, 5))
        tables.put(slot, len(held[slot]), new)
        held[slot] += new
        chosen = rng.sample(range(5), rng.randrange(1, 6))
        widths = np.array([rng.randint(0, len(held[slot])) for slot in chosen])
        step = tables.of(chosen, widths)
        wanted = [held[slot][:width] for slot, width in zip(chosen, widths, strict=True)]
        assert [table.tolist() for table in step] == wanted
        assert [table.tolist() for table in step[1:]] == wanted[1:]
        for groups in ([step], [list(step)], [step, list(step)]):
            joined, lengths = joined_tables(groups)
            assert lengths == [len(table) for _ in groups for table in wanted]
            assert joined.tolist() == [block for _ in groups for each in wanted for block in each]
        columns = rng.randrange(1, 9)
        for given in (step, list(step)):
            out = np.full((len(chosen), columns), -1, np.int32)
            write_tables(given, out)
            for row, table in zip(out, wanted, strict=True):
                assert row[: len(table)].tolist() == table[:columns]


def test_a_table_is_not_changed_later() -> None:
    tables = BlockTables(2)
    tables.put(1, 0, [7, 8])
    table = tables.of([1], np.array([2]))[0]
    tables.put(1, 0, [5, 6])
    assert table.tolist() == [7, 8]


def test_each_group_has_the_blocks_that_were_named_for_it() -> None:
    """One group's after another, as they come."""
    tables = BlockTables(3, groups=2)
    tables.put(2, 0, [1, 2, 3, 11, 12, 13])
    tables.put(0, 0, [8, 18])
    tables.put(2, 3, [4, 5, 14, 15])
    for group, wanted in enumerate(([[1, 2, 3, 4, 5], [8]], [[11, 12, 13, 14, 15], [18]])):
        found = tables.of([2, 0], [5, 1], group)
        assert [table.tolist() for table in found] == wanted
