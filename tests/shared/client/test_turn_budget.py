"""Large things are freed in turns."""

from __future__ import annotations

import asyncio
import time

from penstock.client.turn_budget import TURN, forget

SPENT = TURN / 2


class Dear:
    """Takes half a turn's budget to be freed. turn: says which turn it is."""

    def __init__(self, turn: list[int], freed: list[int]) -> None:
        self._turn, self._freed = turn, freed

    def __del__(self) -> None:
        until = time.thread_time() + SPENT
        while time.thread_time() < until:
            pass
        self._freed.append(self._turn[0])


async def test_others_have_their_turns_while_much_is_freed() -> None:
    turn, freed = [0], list[int]()
    held = [Dear(turn, freed) for _ in range(12)]

    async def other() -> None:
        while True:
            turn[0] += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    await forget(held)
    beside.cancel()
    assert not held
    assert len(freed) == 12
    assert max(freed.count(each) for each in freed) <= TURN / SPENT + 1


async def test_what_is_freed_at_once_takes_one_turn() -> None:
    held = list(range(100))
    before = asyncio.create_task(asyncio.sleep(0))
    await forget(held)
    assert not held
    assert not before.done(), "it waited although there was nothing to wait for"
    await before
