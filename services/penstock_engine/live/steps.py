"""The last steps, noted while somebody watches."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.protocol.from_worker import Result
from penstock.protocol.live import MAX_STEPS, StepRow
from penstock.protocol.to_worker import Plan
from penstock_engine.request.request import Sequence


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

    Told of each plan that is sent and of each result, in order; a few operations for each of a
    plan's slots.
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
        """Forgets everything: nobody watches."""
        self._flying.clear()
        self._settled.clear()
        self.tenants.clear()

    def _forget(self, tenants: Counter[str]) -> None:
        for tenant, tokens in tenants.items():
            self.tenants[tenant] -= tokens
            if not self.tenants[tenant]:
                del self.tenants[tenant]
