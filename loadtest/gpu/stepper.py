"""Drives the worker's runner with steps made by hand: slot i holds sequence i."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from penstock.protocol.common import TokenSampling
from penstock.protocol.to_worker import NewSequence, Plan, SlotWork

IN_FLIGHT = 2
"""Steps, as the engine core has it."""


class Stepper:
    """runner: the worker's, whichever.  block: tokens of a KV block.  room: tokens that a sequence
    may come to.

    ended: when each step's result was there, since the last `clock`.
    """

    def __init__(self, runner: Any, *, vocab: int, block: int, room: int, budget: int) -> None:
        self._begin = runner.begin
        self._vocab = vocab
        self._block = block
        self._room = room
        self._budget = budget
        self._random = random.Random(0)
        self._steps = 0
        self._pending: deque[Any] = deque()
        self._computed: dict[int, int] = {}
        self._released: list[int] = []
        self._coming: list[NewSequence] = []
        self._next_block = 0
        self.ended: list[float] = []

    def clock(self) -> float:
        """Now; `ended` begins anew."""
        self.ended = []
        return time.perf_counter()

    def prefill(self, slots: Iterable[int], length: int) -> None:
        """New sequences of `length` random tokens in free slots, computed in steps of at most the
        budget.  Waits until all is done."""
        self.drain()
        chunks: list[tuple[int, int]] = []
        fresh: dict[int, NewSequence] = {}
        used = 0
        for slot in slots:
            fresh[slot] = self._sequence(slot, length)
            start = 0
            while start < length:
                count = min(length - start, self._budget - used)
                chunks.append((slot, count))
                start, used = start + count, used + count
                if used == self._budget:
                    self._send_chunks(chunks, fresh)
                    chunks, used = [], 0
        self._send_chunks(chunks, fresh)
        self.drain()

    def resume(self, slots: Iterable[int], length: int) -> None:
        """New sequences of `length` tokens in free slots, of which all but the last are in the
        cache: the keys and values of whatever was computed in the same slots before `forget`.
        Waits."""
        self.drain()
        fresh = {slot: self._sequence(slot, length) for slot in slots}
        self._computed |= dict.fromkeys(fresh, length - 1)
        self._send_chunks([(slot, 1) for slot in fresh], fresh)
        self.drain()

    def forget(self) -> None:
        """All sequences leave with the next step; their blocks are free again."""
        self.drain()
        self._released += self._computed
        self._computed, self._next_block = {}, 0

    def decode(self, batch: int, steps: int) -> None:
        """One more token for each of the first `batch` slots, so many times.  Waits."""
        for _ in range(steps):
            self._send([(slot, 1) for slot in range(batch)])
        self.drain()

    def begin_prompt(self, slot: int, length: int) -> None:
        """A new sequence of `length` random tokens, which `mixed` computes, comes with the next of
        its steps."""
        self._coming = [self._sequence(slot, length)]

    def mixed(self, batch: int, slot: int, chunk: int, steps: int) -> None:
        """One more token for each of the first `batch` slots beside `chunk` tokens of the prompt in
        `slot`, so many times.  Waits."""
        for _ in range(steps):
            decodes = [(each, 1) for each in range(batch)]
            admitted, self._coming = self._coming, []
            self._send([*decodes, (slot, chunk)], admitted=admitted)
        self.drain()

    def drain(self) -> None:
        while self._pending:
            self._collect()

    def _sequence(self, slot: int, length: int) -> NewSequence:
        blocks = -(-max(self._room, length) // self._block)
        first, self._next_block = self._next_block, self._next_block + blocks
        self._computed[slot] = 0
        return NewSequence(
            slot=slot,
            tokens=[self._random.randrange(1, self._vocab) for _ in range(length)],
            num_prompt=length,
            index=0,
            sampling=TokenSampling(seed=slot, temperature=0.6),
            blocks=list(range(first, first + blocks)),
        )

    def _send_chunks(self, chunks: list[tuple[int, int]], fresh: dict[int, NewSequence]) -> None:
        if chunks:
            admitted = [fresh.pop(slot) for slot, _ in chunks if slot in fresh]
            self._send(chunks, admitted=admitted)

    def _send(
        self, chunks: list[tuple[int, int]], *, admitted: list[NewSequence] | None = None
    ) -> None:
        work = []
        for slot, count in chunks:
            work.append(SlotWork(slot=slot, start=self._computed[slot], count=count))
            self._computed[slot] += count
        self._steps += 1
        plan = Plan(self._steps, self._steps - 1, self._released, admitted or [], work)
        self._released = []
        self._pending.append(self._begin(plan))
        while len(self._pending) >= IN_FLIGHT:
            self._collect()

    def _collect(self) -> None:
        result = self._pending.popleft().result()
        self.ended.append(time.perf_counter())
        errors = [each.error for each in result.slots if each.error is not None]
        if errors:
            raise RuntimeError(f"{len(errors)} of {len(result.slots)} slots failed: {errors[0]}")
