"""The KV cache's books against a memory in which every block remembers what it holds."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_engine.kv.cache import HostTier, KVCache
from penstock_engine.kv.keys import block_key, root_key
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


operations = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.lists(st.integers(0, 1), min_size=1, max_size=5)),
        st.tuples(st.just("end"), st.integers(0, 9)),
        st.tuples(st.just("forget"), st.integers(0, 9)),
        st.tuples(st.just("plan"), st.none()),
    ),
    max_size=60,
)


@settings(max_examples=part(100, 1 / 3), deadline=None)
@given(st.integers(3, 9), st.integers(0, 4), operations)
def test_what_is_found_is_what_was_computed(size: int, host: int, steps: list) -> None:  # type: ignore[type-arg]
    cache = KVCache(size, 1, host)
    memory = Memory(cache)
    tables: list[list[int]] = []
    for kind, value in steps:
        if kind == "start":
            keys = chain(value)
            match = cache.match(keys)
            if len(keys) - match.blocks + match.taken > cache.pool.num_free:
                continue
            free = cache.pool.num_free
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
    assert host.store(b"a") is None
    block = host.store(b"c")
    assert b"b" not in host
    assert host.read(b"c") == block
    host.drop(b"c")
    assert host.num_used == 1
    assert host.balances()
    with pytest.raises(KeyError):
        host.read(b"c")
