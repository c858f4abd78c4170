"""The KV cache's books against a memory in which every block remembers what it holds."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_engine.kv.cache import HostTier, KVCache, Match
from penstock_engine.kv.keys import block_key, root_key
from tests.met import met
from tests.thinning import part


class Memory:
    """A worker's: carries out copies. device, host: block -> key of its contents."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self.device: dict[int, bytes] = {}
        self.host: dict[int, bytes] = {}

    def copy(self) -> None:
        for copy in self._cache.take_copies():
            source = self.host if copy.kind == "in" else self.device
            target = self.host if copy.kind == "out" else self.device
            target[copy.target] = source[copy.source]


def chain(tokens: Sequence[int], salt: str = "") -> list[bytes]:
    """Keys of blocks of one token each."""
    keys, parent = [], root_key(salt)
    for token in tokens:
        parent = block_key(parent, array("i", [token]))
        keys.append(parent)
    return keys


starts = st.tuples(st.just("start"), st.lists(st.integers(0, 1), min_size=1, max_size=5))
operations = st.lists(
    st.one_of(
        starts,
        starts,
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("forget"), st.integers(0, 9)),
        st.tuples(st.just("plan"), st.none()),
    ),
    min_size=20,
    max_size=60,
)


@settings(max_examples=part(100, 1 / 3), deadline=None)
@given(st.integers(3, 9), st.integers(0, 4), operations)
def test_what_is_found_is_what_was_computed(size: int, host: int, steps: list) -> None:  # type: ignore[type-arg]
    cache = KVCache(size, 1, host)
    memory = Memory(cache)
    tables: list[list[int]] = []
    found = {"device": 0, "host": 0}
    for kind, value in steps:
        if kind == "start":
            keys = chain(value)
            match = cache.match(keys)
            if len(keys) - match.blocks + match.taken > cache.pool.num_free:
                continue
            free = cache.pool.num_free
            absent = sum(key not in cache._block_of for key in keys[: match.blocks])
            found["host"] += absent > 0
            found["device"] += match.blocks > absent
            table = cache.claim(keys[: match.blocks])
            assert free - cache.pool.num_free == match.taken
            table += cache.take(len(keys) - match.blocks)
            memory.copy()
            assert [memory.device[block] for block in table[: match.blocks]] == keys[: match.blocks]
            for block, key in list(zip(table, keys, strict=True))[match.blocks :]:
                memory.device[block] = key
            cache.publish(table, keys)
            assert cache.match(keys).blocks == len(keys)
            tables.append(table)
        elif kind == "plan":
            memory.copy()
        elif tables:
            table = tables.pop(value % len(tables))
            if kind == "forget":
                cache.forget_private(table)
            cache.release(table)
        cache.check(tables)
    assert cache.num_cached <= size
    met("a prefix that exists", found["device"])
    met("a prefix of which some is on the host", found["host"])


def test_a_fetch_that_found_less_gives_all_its_blocks_back_and_names_those_that_came() -> None:
    cache = KVCache(4, 1)
    keys = chain([1, 2, 3])
    blocks = cache.begin_fetch(7, 3)
    assert (cache.pool.num_free, cache.num_fetching) == (1, 3)
    cache.end_fetch(7, keys[:1])
    cache.check([])
    assert (cache.pool.num_free, cache.num_fetching) == (4, 0)
    assert cache.match(keys) == Match(1, 1)
    assert cache.claim(keys[:1]) == blocks[:1]


def test_nothing_is_found_of_what_was_forgotten_on_the_host_or_the_device() -> None:
    cache = KVCache(2, 1, 2)
    for keys in (chain([1, 2]), chain([3, 4])):
        table = cache.take(2)
        cache.publish(table, keys)
        cache.release(table)
    assert [cache.match(chain(tokens)).blocks for tokens in ([1, 2], [3, 4])] == [2, 2]
    cache.forget_all()
    cache.check([])
    assert [cache.match(chain(tokens)).blocks for tokens in ([1, 2], [3, 4])] == [0, 0]


def test_what_lies_behind_a_gap_is_not_found() -> None:
    cache = KVCache(3, 1)
    keys = chain([1, 2, 3])
    table = cache.take(3)
    cache.publish(table, keys)
    cache.forget_private(table[1:2])
    assert cache.match(keys).blocks == 1


def test_blocks_are_claimed_in_the_order_of_their_keys() -> None:
    """The first one comes from the host, the second lies on the device."""
    cache = KVCache(2, 1, 2)
    memory = Memory(cache)
    keys = chain([1, 2])
    table = cache.take(2)
    memory.device.update(zip(table, keys, strict=True))
    cache.publish(table, keys)
    cache.release(table[:1])
    cache.release(cache.take(1))  # the first one's place
    cache.release(table[1:])
    assert cache.match(keys).blocks == 2
    claimed = cache.claim(keys)
    memory.copy()
    assert [memory.device[block] for block in claimed] == keys


def test_a_block_that_is_claimed_makes_no_room_for_one_that_comes_from_the_host() -> None:
    """It is the one that was unused for longest."""
    cache = KVCache(2, 1, 2)
    memory = Memory(cache)
    keys, other = chain([1, 2]), chain([9])
    table = cache.take(2)
    memory.device.update(zip(table, keys, strict=True))
    cache.publish(table, keys)
    cache.release(table[:1])
    moved = cache.take(1)  # The first one goes to the host.
    memory.copy()
    memory.device[moved[0]] = other[0]
    cache.publish(moved, other)
    cache.release(table[1:])
    cache.release(moved)
    assert cache.match(keys).blocks == 2
    claimed = cache.claim(keys)
    memory.copy()
    assert [memory.device[block] for block in claimed] == keys


def test_who_computes_the_same_a_second_time_changes_nothing_that_is_found() -> None:
    cache = KVCache(4, 1)
    keys = chain([1, 2])
    first, second = cache.take(2), cache.take(2)
    cache.publish(first, keys)
    cache.publish(second, keys)
    cache.check([first, second])
    cache.release(second)
    assert cache.claim(keys) == first


def test_what_is_forgotten_does_not_come_back_from_the_host() -> None:
    cache = KVCache(1, 1, 1)
    keys = chain([1])
    for _ in range(2):  # It goes to the host, and comes back.
        table = cache.claim(keys) if cache.match(keys).blocks else cache.take(1)
        cache.publish(table, keys)
        cache.release(table)
        cache.release(cache.take(1))
    table = cache.claim(keys)
    cache.forget_private(table)
    assert cache.match(keys).blocks == 0


def test_only_what_nobody_else_holds_is_forgotten() -> None:
    cache = KVCache(4, 1, 2)
    keys = chain([1, 2])
    first = cache.take(2)
    cache.publish(first, keys)
    second = cache.claim(keys[:1])
    cache.forget_private(first)
    assert cache.match(keys).blocks == 1, "the second is held once, the first one twice"
    cache.release(first)
    cache.release(second)
    cache.check([])


def test_evicted_contents_come_back_from_the_host() -> None:
    cache = KVCache(2, 1, 2)
    memory = Memory(cache)
    first, second = chain([1, 2]), chain([3, 4])
    for keys in (first, second):
        table = cache.take(2)
        memory.copy()
        memory.device.update(zip(table, keys, strict=True))
        cache.publish(table, keys)
        cache.release(table)
    assert cache.num_swapped_out == 2
    assert cache.match(first).blocks == 2
    table = cache.claim(first)
    memory.copy()
    assert [memory.device[block] for block in table] == first
    assert cache.num_swapped_in == 2


def test_what_is_being_swapped_in_is_not_displaced_by_what_makes_room_for_it() -> None:
    cache = KVCache(2, 1, 2)
    memory = Memory(cache)
    for keys in (chain([1, 2]), chain([3, 4])):
        table = cache.take(2)
        memory.copy()
        memory.device.update(zip(table, keys, strict=True))
        cache.publish(table, keys)
        cache.release(table)
    # The host is full of [1, 2]; taking blocks for them evicts [3, 4], which finds no room there.
    table = cache.claim(chain([1, 2]))
    memory.copy()
    assert [memory.device[block] for block in table] == chain([1, 2])
    assert cache.match(chain([3, 4])).blocks == 0


def test_a_salt_separates_and_parts_of_a_root_do_not_run_together() -> None:
    assert not set(chain([1, 2], "a")) & set(chain([1, 2], "b"))
    assert root_key("ab", "c") != root_key("a", "bc")
    assert chain([1, 2])[1] != chain([2, 2])[1]


def test_the_host_forgets_the_least_recent() -> None:
    host = HostTier(2)
    assert {host.store(b"a"), host.store(b"b")} == {0, 1}
    host.read(b"a")
    block = host.store(b"c")
    assert b"b" not in host
    assert host.store(b"a") is None, "it is there"
    assert host.store(b"d") == block, "stored again, it counts as newer"
    block = host.store(b"c")
    assert b"a" not in host
    assert host.read(b"c") == block
    host.drop(b"c")
    assert host.num_used == 1
    assert host.balances()
    with pytest.raises(KeyError):
        host.read(b"c")
