"""The block pool against the obvious model: an ordered list of free blocks and a dict of counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_engine.kv.cache import KVCache
from penstock_engine.kv.pool import MAX_BLOCKS, BlockPool, BrokenState, OutOfBlocks
from penstock_engine.kv.table import BlockTable
from tests.met import met


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), min_size=10, max_size=60),
    st.sets(st.integers(0, 11)),
)
def test_pool_equals_the_obvious_model(
    size: int, operations: list[tuple[int, int]], kept: set[int]
) -> None:
    pool = BlockPool(size)
    free = list(range(size))
    tables: list[list[int]] = []
    revived = several = 0
    for kind, number in operations:
        if kind == 0:
            if number > len(free):
                with pytest.raises(OutOfBlocks):
                    pool.take(number)
            else:
                taken = pool.take(number)
                assert taken == free[:number]
                free = free[number:]
                tables.append(taken)
        elif kind == 1 and tables:
            table = tables.pop(number % len(tables))
            pool.give_back(table, kept)
            for block in reversed(table):
                if not any(block in other for other in tables):
                    free.insert(len(free) if block in kept else 0, block)
        elif kind == 2 and number < size:
            pool.share(number)  # Held by another table already, or revived from the free list.
            revived += number in free
            if number in free:
                free.remove(number)
            tables.append([number])
        pool.check(tables)
        assert pool.num_free == len(free)
        assert pool.num_used == size - len(free)
        assert pool.balances(sum(map(len, tables)))
        several += any(pool.num_owners(block) > 1 for block in range(size))
    met("a free block is revived", revived)
    met("a block of several owners", several)


def test_a_block_freed_twice_is_noticed() -> None:
    pool = BlockPool(3)
    blocks = pool.take(2)
    pool.give_back(blocks)
    with pytest.raises(BrokenState, match="twice"):
        pool.give_back(blocks)


@pytest.mark.parametrize(
    ("tables", "complaint"),
    [([], "held"), ([[0, 1], [1]], "references"), ([[0, 2]], "references")],
)
def test_check_notices_tables_that_disagree(tables: list[list[int]], complaint: str) -> None:
    pool = BlockPool(3)
    assert pool.take(2) == [0, 1]
    with pytest.raises(BrokenState, match=complaint):
        pool.check(tables)


def test_check_notices_a_broken_free_list() -> None:
    pool = BlockPool(4)
    pool.take(1)
    pool._next[2] = 2
    with pytest.raises(BrokenState, match="free list"):
        pool.check([[0]])


@pytest.mark.parametrize("size", [0, -1, MAX_BLOCKS + 1])
def test_sizes_are_bounded(size: int) -> None:
    with pytest.raises(ValueError, match="blocks"):
        BlockPool(size)


def test_kept_blocks_are_reused_last_and_tails_first_and_others_at_once() -> None:
    pool = BlockPool(7)
    first, second = pool.take(3), pool.take(3)
    pool.give_back(first, kept=first)
    pool.give_back(second, kept=second[:2])
    assert pool.take(7) == [5, 6, 2, 1, 0, 4, 3]


def test_a_table_grows_by_what_is_missing() -> None:
    cache, table = KVCache(10, 4), BlockTable(4)
    assert table.grow(cache, 5) == [0, 1]
    assert table.capacity == 8
    assert table.missing(8) == 0
    assert table.grow(cache, 8) == []
    assert table.grow(cache, 9) == [2]
    with pytest.raises(OutOfBlocks):
        table.grow(cache, 41)
    cache.check([table.blocks])
    table.release(cache)
    assert table.blocks == []
    cache.check([])
