"""Blocks that are kept for sessions: what goes first, who gives way, and that the books hold."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_engine.kv.cache import KVCache
from penstock_engine.kv.pool import BlockPool, BrokenState
from penstock_engine.kv.retention import KVSession, Retention
from tests.met import met
from tests.thinning import part


def session(name: str = "s", tenant: str = "", weight: int = 1, until: float = 1.0) -> KVSession:
    made = KVSession(tenant, name, weight)
    made.until = until
    return made


def kept_by(retention: Retention, *whose: KVSession) -> list[int]:
    return [len(each.blocks) for each in whose]


def with_contents(cache: KVCache, name: str, count: int) -> list[int]:
    """Blocks that somebody holds, and whose contents can be found."""
    blocks = cache.take(count)
    cache.publish(blocks, [f"{name} {at}".encode() for at in range(count)])
    return blocks


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), min_size=20, max_size=60),
)
def test_reserved_blocks_are_taken_when_there_are_no_others(
    size: int, operations: list[tuple[int, int]]
) -> None:
    pool = BlockPool(size)
    plain, last = list(range(size)), list[int]()
    reserved = set[int]()
    held: list[int] = []
    taken_last = 0
    for kind, number in operations:
        block = number % size
        if kind == 0 and number <= len(plain) + len(last):
            taken = pool.take(number)
            taken_last += number > len(plain)
            assert taken == (plain + last)[:number]
            last = last[max(0, number - len(plain)) :]
            plain = plain[number:]
            reserved -= set(taken) & (reserved - set(last) - set(held))
            held += taken
        elif kind == 1 and held:
            block = held.pop(number % len(held))
            pool.give_back([block], kept=[block])
            (last if block in reserved else plain).append(block)
        elif kind == 2 and block not in held:
            pool.share(block)
            for ring in (plain, last):
                if block in ring:
                    ring.remove(block)
            held.append(block)
        elif kind == 3 and block not in reserved:
            pool.reserve(block)
            reserved.add(block)
            if block in plain:
                plain.remove(block)
                last.append(block)
        elif kind == 4 and block in reserved:
            pool.unreserve(block)
            reserved.remove(block)
            if block in last:
                last.remove(block)
                plain.append(block)
        pool.check([held])
        assert pool.num_free == len(plain) + len(last)
    met("a reserved one is taken for want of others", taken_last)


def test_a_session_keeps_its_leading_blocks_as_far_as_there_is_room() -> None:
    cache = KVCache(10, 1, session_share=0.3)
    mine = session()
    cache.release(with_contents(cache, "a", 5), mine)
    assert list(mine.blocks) == [0, 1, 2]
    cache.check([])
    # What nobody keeps goes first, and of what is kept the tail.
    assert cache.take(10)[-3:] == [2, 1, 0]
    assert not mine.blocks


def test_contents_that_cannot_be_found_are_not_kept() -> None:
    cache = KVCache(4, 1, session_share=1.0)
    mine = session()
    blocks = cache.take(3)
    cache.publish(blocks[:2], [b"1", b"2"])
    cache.release(blocks, mine)
    assert list(mine.blocks) == blocks[:2]
    cache.check([])


def test_the_session_that_was_there_the_longest_ago_gives_way() -> None:
    cache = KVCache(12, 1, session_share=0.5)
    first, second, third = (session(name) for name in "abc")
    for each in (first, second):
        cache.release(with_contents(cache, each.name, 3), each)
    cache.retention.touch(first)
    cache.release(with_contents(cache, "c", 2), third)
    assert kept_by(cache.retention, first, second, third) == [3, 1, 2]
    cache.check([])


def test_no_tenant_keeps_more_than_its_share_while_another_wants_some() -> None:
    cache = KVCache(40, 1, session_share=0.5)
    greedy = [session(f"g{at}", "greedy") for at in range(5)]
    for each in greedy:
        cache.release(with_contents(cache, each.name, 4), each)
    modest = session("m", "modest", weight=3)
    cache.release(with_contents(cache, "m", 18), modest)
    assert len(modest.blocks) == 15, "three of four parts of 20"
    assert kept_by(cache.retention, *greedy) == [0, 0, 0, 1, 4]
    cache.release(with_contents(cache, "more", 4), session("g5", "greedy"))
    assert len(modest.blocks) == 15
    cache.check([])


def test_what_a_session_no_longer_needs_makes_room_for_what_it_does() -> None:
    cache = KVCache(12, 1, session_share=0.5)
    mine = session()
    cache.release(with_contents(cache, "one branch", 4), mine)
    other = with_contents(cache, "another", 4)
    cache.release(other, mine)
    assert list(mine.blocks)[:4] == other
    assert len(mine.blocks) == 6
    cache.check([])


def test_a_shared_block_is_kept_for_whose_time_is_over_last() -> None:
    cache = KVCache(8, 1, session_share=1.0)
    early, late = session("early", until=1.0), session("late", until=9.0)
    blocks = with_contents(cache, "a", 3)
    cache.release(blocks, early)
    keys = [f"a {at}".encode() for at in range(3)]
    cache.release(cache.claim(keys), late)
    assert kept_by(cache.retention, early, late) == [0, 3]
    cache.release(cache.claim(keys[:2]), early)
    assert kept_by(cache.retention, early, late) == [0, 3]
    cache.retention.let_go(late)
    assert cache.retention.num_blocks == 0
    cache.check([])


@pytest.mark.parametrize("seed", range(part(20, 1 / 4)))
def test_any_history_leaves_sound_books(seed: int) -> None:
    rng = random.Random(seed)
    cache = KVCache(rng.randint(4, 30), 1, rng.choice((0, 9)), rng.random())
    sessions = [session(str(at), "xyz"[at % 3], 1 + at % 3) for at in range(7)]
    tables: list[tuple[list[int], KVSession | None]] = []
    for at in range(300):
        kind = rng.randrange(5)
        if kind < 2:
            count = rng.randint(0, 6)
            keys = [f"{rng.randrange(3)} {number}".encode() for number in range(count)]
            match = cache.match(keys)
            if count - match.blocks + match.taken > cache.pool.num_free:
                continue
            table = cache.claim(keys[: match.blocks]) + cache.take(count - match.blocks)
            whose = rng.choice([None, *sessions])
            if whose is not None:
                whose.until = at + rng.randint(0, 50)
                cache.retention.touch(whose)
            cache.publish(table, keys)
            tables.append((table, whose))
        elif kind < 4 and tables:
            table, whose = tables.pop(rng.randrange(len(tables)))
            if rng.randrange(4) == 0:
                cache.forget_private(table)
            cache.release(table, whose)
        else:
            cache.retention.let_go(rng.choice(sessions))
        cache.check([table for table, _ in tables])
    cache.retention.forget_all()
    assert not any(each.blocks for each in sessions)


def test_check_notices_books_that_disagree() -> None:
    cache = KVCache(8, 1, session_share=1.0)
    mine = session()
    cache.release(with_contents(cache, "a", 3), mine)
    cache.pool.unreserve(1)
    with pytest.raises(BrokenState, match="KV block 1"):
        cache.check([])
    cache.pool.reserve(1)
    mine.blocks[7] = None
    with pytest.raises(BrokenState, match="keeps 4 blocks"):
        cache.check([])
