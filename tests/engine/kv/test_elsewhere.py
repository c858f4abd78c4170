"""What is asked for of KV kept elsewhere, and what of it is needed, against a slow search."""

from __future__ import annotations

import random
from hashlib import blake2b

import pytest

from penstock.model.kv_layout import FULL, KVGroup
from penstock_engine.kv.cache import KVCache
from penstock_engine.kv.elsewhere import WantedKV
from penstock_engine.kv.groups import KVGroups, key_in
from penstock_engine.kv.keys import stored_name

SIZE = 4
KEYS = [blake2b(str(number).encode(), digest_size=32).digest() for number in range(40)]
MODELS = {
    "full": (FULL,),
    "two full": (FULL, FULL),
    "window": (FULL, KVGroup(window=9)),
    "windows": (FULL, KVGroup(window=1), KVGroup(window=14), KVGroup(chunk=8)),
    "no full": (KVGroup(window=6),),
    "states": (FULL, KVGroup(every=3 * SIZE, blocks=2)),
    "window, states": (KVGroup(window=7), KVGroup(every=SIZE, blocks=1)),
}


def needed(groups: KVGroups, blocks: int) -> set[bytes] | None:
    """All names to go on behind so many blocks of tokens; None: one can't."""
    found = {
        key_in(number, KEYS[at])
        for number, group in enumerate(groups.paged)
        for at in range(blocks)
        if (at + 1) * SIZE > group.first_seen(blocks * SIZE)
    }
    if groups.states is not None and blocks:
        if blocks % groups.states.every:
            return None
        found |= set(groups.states.names(KEYS[blocks - 1]))
    return found


def everything(groups: KVGroups) -> set[bytes]:
    found: set[bytes] = set()
    for blocks in range(len(KEYS) + 1):
        found |= needed(groups, blocks) or set()
    return found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("model", MODELS)
def test_what_is_needed_and_not_in_memory_is_asked_for_and_read(model: str, seed: int) -> None:
    own = random.Random(f"{model} {seed}")
    groups = KVGroups(SIZE, MODELS[model])
    cache = KVCache(400, SIZE)
    every = sorted(everything(groups))
    here = own.sample(every, own.choice([0, len(every) // 4, len(every) * 3 // 4]))
    blocks = cache.take(len(here))
    cache.publish(blocks, here)
    prefix = KEYS[: own.randrange(4, len(KEYS))]
    present = groups.match(cache, prefix).blocks
    most = own.choice([400, 25])
    wanted = WantedKV(groups, cache, prefix, most)
    assert wanted.present == present
    assert len(wanted.names) <= most
    assert not set(wanted.names) & set(here)
    reachable = [
        blocks
        for blocks in range(present + 1, len(prefix) + 1)
        if (names := needed(groups, blocks)) is not None
        and (most == 25 or names <= set(here) | set(wanted.names))
    ]
    if most == 400:
        # Nothing that could be needed is left out.
        assert reachable == [
            blocks
            for blocks in range(present + 1, len(prefix) + 1)
            if needed(groups, blocks) is not None
        ]
    for count in {0, 1, len(wanted.names) // 2, len(wanted.names)}:
        for room in (1000, 12):
            reached = wanted.reached(count, room)
            assert present <= reached <= len(prefix)
            names = wanted.needed(reached, count)
            assert len(names) <= room
            assert names == [name for name in wanted.names[:count] if name in set(names)]
            if reached > present:
                whole = needed(groups, reached)
                assert whole is not None
                assert whole <= set(here) | set(names)
                assert set(names) == whole - set(here)
            if room == 1000 and most == 400 and count == len(wanted.names) and reachable:
                assert reached == reachable[-1]


def test_stored_names_are_as_long_as_keys_and_differ() -> None:
    groups = KVGroups(SIZE, MODELS["window, states"])
    assert groups.states is not None
    names = {key_in(group, key) for group in range(3) for key in KEYS}
    names |= {name for key in KEYS for name in groups.states.names(key)}
    stored = {stored_name(name) for name in names}
    assert len(stored) == len(names)
    assert {len(each) for each in stored} == {32}
    assert all(stored_name(key) == key for key in KEYS)
