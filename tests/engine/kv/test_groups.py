"""Prefixes that are found in several KV groups, against a slow search."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.kv_layout import FULL, KVGroup
from penstock_engine.kv.cache import KVCache
from penstock_engine.kv.groups import KVGroups, key_in, keys_in
from penstock_engine.kv.pool import OutOfBlocks
from penstock_engine.kv.table import BlockTable
from tests.engine.kv.test_cache import chain
from tests.met import met
from tests.thinning import part

KINDS = (FULL, KVGroup(window=1), KVGroup(window=5), KVGroup(window=8), KVGroup(chunk=6))
SIZE = 2


def slow_match(groups: KVGroups, there: set[tuple[int, int]], length: int) -> int:
    """The most blocks after which a sequence can go on. there: (group, block)."""
    best = 0
    for blocks in range(length + 1):
        position = blocks * SIZE
        needed = [
            (number, at // SIZE)
            for number, group in enumerate(groups.groups)
            for at in range(group.first_seen(position), position)
        ]
        if set(needed) <= there:
            best = blocks
    return best


@settings(max_examples=part(200, 1 / 3))
@given(
    (
        st.lists(st.sampled_from(KINDS), min_size=2, max_size=3)
        | st.lists(st.sampled_from(KINDS), min_size=1, max_size=1)
    ).map(lambda kinds: sorted(kinds, key=lambda kind: kind.forgets)),
    st.integers(1, 9) | st.integers(5, 9),
    st.just(set()) | st.just(set()) | st.sets(st.tuples(st.integers(0, 2), st.integers(0, 8))),
    st.sets(st.tuples(st.integers(0, 2), st.integers(0, 8)), min_size=1, max_size=4),
)
def test_the_longest_prefix_is_found(
    kinds: list[KVGroup], length: int, there: set[tuple[int, int]], lost: set[tuple[int, int]]
) -> None:
    """there: or all but what is lost, if that is more."""
    groups = KVGroups(SIZE, kinds)
    everything = {(group, at) for group in range(len(kinds)) for at in range(length)}
    there = (there or everything - lost) & everything
    cache, keys = KVCache(64, SIZE), chain(range(length))
    for group, at in sorted(there):
        blocks = cache.take(1)
        cache.publish(blocks, [key_in(group, keys[at])])
        cache.release(blocks)
    match = groups.match(cache, keys)
    assert match.blocks == slow_match(groups, there, length)
    met("a part of the prefix, in several groups", 0 < match.blocks < length and len(kinds) > 1)
    free = cache.pool.num_free
    held = groups.claim(cache, keys[: match.blocks]).held
    assert free - cache.pool.num_free == match.taken == sum(map(len, held))
    cache.check(held)


def test_a_table_grows_in_all_groups_and_forgets_in_each() -> None:
    cache = KVCache(12, 4)
    table = BlockTable(4, [[], []])
    assert table.grow(cache, 9) == [0, 1, 2, 3, 4, 5]
    assert (table.length, table.capacity, table.num_blocks) == (3, 12, 6)
    assert table.entries() == [0, 1, 2, 3, 4, 5]
    assert table.blocks == [0, 3, 1, 4, 2, 5], "in token order"
    keys = chain(range(3))
    cache.publish(table.span(1, 0, 3), keys_in(1, keys))
    table.forget(cache, [0, 2])
    assert table.entries() == [0, 1, 2, -1, -1, 5]
    assert (table.at(1), table.at(2)) == (None, [2, 5])
    assert cache.match(keys_in(1, keys)).blocks == 3, "what is forgotten can be found"
    cache.check([table.blocks])
    assert table.grow(cache, 16) == [6, 7]
    table.forget(cache, [0, 1])
    assert table.first == [0, 2], "nothing comes back"
    table.release(cache)
    cache.check([])
    with pytest.raises(OutOfBlocks):
        table.grow(cache, 28)


@pytest.mark.parametrize(
    ("kinds", "blocks", "tokens"),
    [
        ([FULL], 7, 14),
        ([FULL, KVGroup(window=5)], 10, 14),
        ([FULL, KVGroup(window=5), KVGroup(window=5)], 7, 4),
        ([KVGroup(window=5)], 3, 1000),
        ([KVGroup(window=5)], 2, 4),
        ([FULL, FULL], 1, 0),
    ],
)
def test_how_long_a_sequence_may_get(kinds: list[KVGroup], blocks: int, tokens: int) -> None:
    assert KVGroups(SIZE, kinds).longest(blocks, 1000) == tokens
