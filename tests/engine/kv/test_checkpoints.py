"""Checkpoints of recurrent states: what tables hold of them, and the prefixes found by them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.kv_layout import FULL, KVGroup, blocks_needed
from penstock_engine.kv.cache import KVCache
from penstock_engine.kv.groups import KVGroups, key_in, keys_in
from penstock_engine.kv.pool import OutOfBlocks
from tests.engine.kv.test_cache import chain
from tests.met import met
from tests.thinning import part

SIZE = 2


def groups_of(*kinds: KVGroup, every: int = 4, blocks: int = 3) -> KVGroups:
    return KVGroups(SIZE, (*kinds, KVGroup(every=every, blocks=blocks)))


def test_a_table_holds_the_newest_checkpoint_and_those_to_come() -> None:
    groups, cache, keys = groups_of(FULL), KVCache(40, SIZE), chain(range(6))
    table = groups.claim(cache, [])
    assert len(table.grow(cache, 13)) == 7
    states = table.checkpoints
    assert states is not None
    assert (table.num_blocks, states.num_blocks) == (7 + 9, 9)
    assert table.new_states(table.held[0]) == states.all_blocks()
    assert table.new_states(table.held[0][5:]) == states.held[2]
    assert table.new_states([]) == []
    cache.publish(table.span(0, 0, 5), keys_in(0, keys[:5]))
    states.publish(cache, 0, 5, keys[:5])
    assert len(states.held) == 2, "behind tokens 8 and 12"
    cache.check([table.blocks])
    match = groups.match(cache, keys)
    assert (match.blocks, match.taken) == (4, 0)
    first = groups.match(cache, keys[:3])
    assert (first.blocks, first.taken) == (2, 3), "the older one can still be found"
    table.release(cache)
    cache.check([])


def test_blocks_in_token_order_have_a_checkpoint_behind_its_tokens() -> None:
    groups, cache = groups_of(FULL, every=4, blocks=2), KVCache(40, SIZE)
    table = groups.claim(cache, [])
    table.grow(cache, 6)
    states = table.checkpoints
    assert states is not None
    [tokens], [own] = table.held, states.held
    assert table.blocks == [*tokens[:2], *own, tokens[2]]


def test_a_table_goes_on_behind_the_checkpoint_that_was_found() -> None:
    groups, cache, keys = groups_of(FULL), KVCache(40, SIZE), chain(range(4))
    one = groups.claim(cache, [])
    one.grow(cache, 8)
    cache.publish(one.span(0, 0, 4), keys_in(0, keys))
    assert one.checkpoints is not None
    one.checkpoints.publish(cache, 0, 4, keys)
    table = groups.claim(cache, keys)
    states = table.checkpoints
    assert states is not None
    assert (states.found, states.tokens_found) == (2, 8)
    assert states.held == one.checkpoints.held
    assert groups.held(4) == table.num_blocks == 4 + 3
    table.grow(cache, 12)
    assert table.new_states(table.held[0][4:]) == states.held[1]
    cache.check([one.blocks, table.blocks])


@settings(max_examples=part(100, 1 / 3))
@given(
    st.sampled_from([(FULL,), (FULL, KVGroup(window=3)), (KVGroup(window=5),)]),
    st.integers(1, 3),
    st.integers(8, 12) | st.integers(1, 12),
    st.just(set()) | st.sets(st.tuples(st.integers(0, 1), st.integers(0, 11)), max_size=4),
    st.sets(st.tuples(st.integers(5, 11), st.integers(0, 1)), min_size=4, max_size=8)
    | st.sets(st.tuples(st.integers(0, 11), st.integers(0, 1)), max_size=4),
)
def test_the_longest_prefix_with_a_whole_checkpoint_is_found(
    kinds: tuple[KVGroup, ...],
    apart: int,
    length: int,
    lost: set[tuple[int, int]],
    lost_pieces: set[tuple[int, int]],
) -> None:
    """lost: (group, block).  lost_pieces: (blocks before the checkpoint - 1, piece)."""
    groups = groups_of(*kinds, every=SIZE * apart, blocks=2)
    cache, keys = KVCache(100, SIZE), chain(range(length))
    assert groups.states is not None
    for at, key in enumerate(keys):
        names = [key_in(group, key) for group in range(len(kinds)) if (group, at) not in lost]
        if (at + 1) % apart == 0:
            pieces = enumerate(groups.states.names(key))
            names += [name for piece, name in pieces if (at, piece) not in lost_pieces]
        blocks = cache.take(len(names))
        cache.publish(blocks, names)
        cache.release(blocks)
    best = 0
    for blocks_ in range(0, length + 1, apart):
        needed = {
            (number, at // SIZE)
            for number, group in enumerate(kinds)
            for at in range(group.first_seen(blocks_ * SIZE), blocks_ * SIZE)
        }
        pieces_ = {(blocks_ - 1, piece) for piece in range(2)} if blocks_ else set()
        if not needed & lost and not pieces_ & lost_pieces:
            best = blocks_
    match = groups.match(cache, keys)
    assert match.blocks == best
    met("a prefix behind a checkpoint, and more that is lost", 0 < best <= length - apart)
    free = cache.pool.num_free
    table = groups.claim(cache, keys[:best])
    assert free - cache.pool.num_free == match.taken == table.num_blocks
    cache.check([table.blocks])


def test_no_two_names_are_alike() -> None:
    groups = groups_of(FULL, KVGroup(window=3), blocks=300)
    assert groups.states is not None
    key = chain(range(1))[0]
    names = [key_in(0, key), key_in(1, key), *groups.states.names(key)]
    assert len(set(names)) == 302


@given(st.integers(0, 60), st.integers(0, 40), st.integers(1, 5), st.integers(1, 4))
def test_room_is_what_a_table_can_grow_by(free: int, held: int, apart: int, pieces: int) -> None:
    groups = groups_of(FULL, KVGroup(window=4), every=SIZE * apart, blocks=pieces)
    cache = KVCache(1000, SIZE)
    table = groups.claim(cache, [])
    table.grow(cache, held)
    cache.take(cache.pool.num_free - free)
    room = groups.room(table, free)
    met("room for some", room)
    met("room for none", not room)
    assert room % SIZE == 0
    end = table.capacity + room
    with pytest.raises(OutOfBlocks):
        table.grow(cache, end + 1)
    table.grow(cache, end)
    assert table.capacity == end


@given(st.integers(1, 200), st.integers(1, 60), st.integers(1, 5), st.integers(1, 4))
def test_what_is_needed_is_what_a_sequence_holds_at_most(
    tokens: int, fresh: int, apart: int, pieces: int
) -> None:
    """Computed in chunks of `fresh`, the newest checkpoint is published before the next chunk."""
    group = KVGroup(every=SIZE * apart, blocks=pieces)
    groups, cache = KVGroups(SIZE, (FULL, group)), KVCache(4000, SIZE)
    table, keys = groups.claim(cache, []), chain(range(tokens // SIZE))
    computed, most = 0, 0
    while computed < tokens:
        table.grow(cache, min(tokens, computed + fresh))
        most = max(most, table.num_blocks)
        before, computed = computed // SIZE, min(tokens, computed + fresh)
        assert table.checkpoints is not None
        last = computed // SIZE
        table.checkpoints.publish(cache, before, last, keys[before:last])
    assert most <= blocks_needed((FULL, group), tokens, SIZE, fresh)
    met("several chunks with a checkpoint", tokens > fresh and tokens >= SIZE * apart)
