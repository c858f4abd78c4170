"""Prompts that another engine core computes first, and whose requests are to come here.

While they are computed, what of their KV blocks is there already is fetched, some at a time, into
free blocks of the pool. These stay free, and are found by their keys, as all others: the request,
once it comes, has only the rest to wait for.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from penstock.protocol.from_frontend import MAX_EXPECT_SECONDS
from penstock_engine.kv.pool import BrokenState
from penstock_engine.parts import HasDeadline, ServesFrontends

MAX_EXPECTED_PROMPTS = 64
"""Most expected prompts at a time; one more isn't fetched in advance."""

MAX_EXPECTED_KEYS = 65_536
"""Most keys of all expected prompts; one with more than are left isn't fetched in advance."""

LOOK_SECONDS = 0.1
"""Seconds before the first look-up of stored blocks, and between two. Each that finds nothing
doubles the next interval: most of many prompts wait for their turn to be computed."""

MOST_LOOK_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class ExpectedPrompt:
    """keys: of its full blocks, in token order.  until: when it is given up.  look_at: when it is
    to be looked for next.  left: blocks that may still be read for it: should others need them so
    soon that they are read again and again, that ends.  pause: between two looks, as they are."""

    keys: list[bytes]
    until: float
    look_at: float
    left: int
    pause: float = LOOK_SECONDS

    def came(self) -> None:
        """Notes that what was looked for was there, so that the next part may be, too."""
        self.look_at, self.pause = 0.0, LOOK_SECONDS


class ExpectedPrompts(HasDeadline, ServesFrontends):
    """The book, by the sessions of front ends and their numbers."""

    def __init__(self) -> None:
        self._prompts: dict[tuple[bytes, int], ExpectedPrompt] = {}
        self._num_keys = 0

    def __len__(self) -> int:
        return len(self._prompts)

    def add(self, session: bytes, number: int, keys: list[bytes], groups: int, now: float) -> None:
        """groups: KV groups, of each of which a block may be read for each key."""
        self.forget(session, number)
        room = MAX_EXPECTED_KEYS - self._num_keys
        if not keys or len(self._prompts) >= MAX_EXPECTED_PROMPTS or len(keys) > room:
            return
        self._num_keys += len(keys)
        self._prompts[session, number] = ExpectedPrompt(
            keys, now + MAX_EXPECT_SECONDS, now + LOOK_SECONDS, len(keys) * groups
        )

    def forget(self, session: bytes, number: int) -> None:
        """Forgets a prompt whose request has come, or will not."""
        prompt = self._prompts.pop((session, number), None)
        if prompt is not None:
            self._num_keys -= len(prompt.keys)

    def frontend_ended(self, session: bytes) -> None:
        """The front end is gone."""
        for name in [name for name in self._prompts if name[0] == session]:
            self.forget(*name)

    def due(self, now: float) -> list[ExpectedPrompt]:
        """Prompts that are to be looked for by now, longest expected first."""
        if not self._prompts:
            return []
        for name in [name for name, each in self._prompts.items() if each.until <= now]:
            self.forget(*name)
        found = [each for each in self._prompts.values() if each.look_at <= now]
        for each in found:
            each.look_at = now + each.pause
            each.pause = min(2 * each.pause, MOST_LOOK_SECONDS)
        return found

    def next_deadline(self) -> float:
        """The time at which `due` has something to return next; infinity for never."""
        if not self._prompts:
            return math.inf
        times = (min(each.look_at, each.until) for each in self._prompts.values())
        return min(times, default=math.inf)

    def check(self, sessions: Collection[bytes]) -> None:
        """Proves the book. Raises BrokenState. sessions: of front ends, that are open."""
        count = sum(len(each.keys) for each in self._prompts.values())
        if count != self._num_keys or count > MAX_EXPECTED_KEYS:
            raise BrokenState(f"{self._num_keys} keys of expected prompts are counted, not {count}")
        if len(self._prompts) > MAX_EXPECTED_PROMPTS:
            raise BrokenState(f"{len(self._prompts)} prompts are expected")
        if any(session not in sessions for session, _ in self._prompts):
            raise BrokenState("a prompt is expected of a front end that is gone")
