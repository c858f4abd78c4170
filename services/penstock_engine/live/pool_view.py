"""The KV pool as a picture: a state for each block, counted by cells.

No loop of Python's runs over blocks: the states come of a few passes over whole byte strings, and
each cell is counted by one call for each state.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.protocol.from_worker import Result
from penstock.protocol.live import (
    MAX_CELLS,
    MAX_STEPS,
    BlockView,
    StepRow,
)
from penstock.protocol.to_worker import Plan
from penstock_engine.kv.cache import FINDABLE, KVCache
from penstock_engine.kv.pool import bytes_or
from penstock_engine.request.request import Sequence

_FREE, _USED, _SHARED = 0, 1, 2
_CACHED = FINDABLE
_MARKED = (FINDABLE | _FREE, FINDABLE | _USED, FINDABLE | _SHARED)
_FOUND_OR_NOT = bytes([_FREE, _USED, _SHARED, 3, _CACHED, _USED, _SHARED, *range(7, 256)])
"""Maps the classes of blocks to those that are shown: for a block that is held it makes no
difference whether others may find it."""


def block_view(cache: KVCache) -> BlockView:
    """The pool's state now."""
    marked = bytes_or(cache.pool.owner_classes(), cache.findable)
    states = marked.translate(_FOUND_OR_NOT)
    totals = {state: states.count(state) for state in (_FREE, _CACHED, _USED, _SHARED)}
    total = cache.pool.num_blocks
    span = -(-total // MAX_CELLS)
    host = cache.host
    return BlockView(
        total=total,
        block_size=cache.block_size,
        free=totals[_FREE],
        cached=totals[_CACHED],
        used=totals[_USED],
        shared=totals[_SHARED],
        findable=sum(marked.count(mark) for mark in _MARKED),
        span=span,
        map=_map(states, span, totals),
        host_total=0 if host is None else host.num_blocks,
        host_used=0 if host is None else host.num_used,
        swapped_out=cache.num_swapped_out,
        swapped_in=cache.num_swapped_in,
    )


def _map(states: bytes, span: int, totals: dict[int, int]) -> bytes:
    """The map of blocks, three bytes per cell of `span` blocks: see BlockView.map."""
    cells = -(-len(states) // span)
    made = bytearray(3 * cells)
    for place, state in enumerate((_USED, _SHARED, _CACHED)):
        if totals[state]:
            made[place::3] = _counts(states, state, span)
    return bytes(made)


def _counts(states: bytes, state: int, span: int) -> bytes:
    count = states.count
    counts = [count(state, start, start + span) for start in range(0, len(states), span)]
    if span > 255:
        # Rounded up, so that one block of many is still seen.
        counts = [-(-255 * each // span) for each in counts]
    return bytes(counts)


@dataclass(slots=True)
class _Sent:
    """A step in flight. tenants: tokens that it computes for each."""

    number: int
    prefill: int
    decode: int
    sequences: int
    tenants: Counter[str]


class StepLog:
    """rows: of settled steps, oldest first.  tenants: tokens that these have computed for each.

    Called with each plan that is sent and each result, in order; takes a few operations for each of
    a plan's slots.
    """

    def __init__(self) -> None:
        self.tenants: Counter[str] = Counter()
        self._flying: deque[_Sent] = deque()
        self._settled: deque[tuple[StepRow, Counter[str]]] = deque()
        self._begun = 0.0

    @property
    def rows(self) -> list[StepRow]:
        return [row for row, _ in self._settled]

    def sent(self, plan: Plan, running: Mapping[int, Sequence], now: float) -> None:
        """A plan goes to the worker. running: by slot."""
        prefill = decode = 0
        tenants: Counter[str] = Counter()
        for work in plan.work:
            sequence = running.get(work.slot)
            if sequence is None:
                continue
            if work.count == 1 and work.start >= len(sequence.request.prompt_token_ids):
                decode += 1
            else:
                prefill += work.count
            tenants[sequence.request.tenant] += work.count
        if not self._flying:
            self._begun = now
        self._flying.append(_Sent(plan.step, prefill, decode, len(plan.work), tenants))

    def settled(self, result: Result, now: float) -> None:
        """A result has come; of a step that was sent before anybody watched nothing is known."""
        begun, self._begun = self._begun, now
        if not self._flying or self._flying[0].number != result.step:
            return
        step = self._flying.popleft()
        row = StepRow(
            step.number,
            round(now - begun, 6),
            round(result.compute_seconds, 6),
            step.prefill,
            step.decode,
            step.sequences,
            sum(outcome.drafted for outcome in result.slots),
            sum(len(outcome.more) for outcome in result.slots),
        )
        self._settled.append((row, step.tenants))
        self.tenants.update(step.tenants)
        if len(self._settled) > MAX_STEPS:
            self._forget(self._settled.popleft()[1])

    def lost(self) -> None:
        """The worker is gone, and the steps in flight with it."""
        self._flying.clear()

    def clear(self) -> None:
        """Drops everything: nobody watches."""
        self._flying.clear()
        self._settled.clear()
        self.tenants.clear()

    def _forget(self, tenants: Counter[str]) -> None:
        for tenant, tokens in tenants.items():
            self.tenants[tenant] -= tokens
            if not self.tenants[tenant]:
                del self.tenants[tenant]
