"""A worker that only takes time: it answers every plan with tokens that mean nothing."""

from __future__ import annotations

from collections import deque

from penstock.protocol.from_worker import Result, SlotResult
from penstock.protocol.to_worker import Plan
from penstock_engine.simulate.cost import StepCost

TOKEN = 5
"""What every sequence says."""


class SimulatedWorker:
    """Knows how many tokens each slot has, and nothing else of a plan: copies of blocks, swaps and
    whatever else a plan may bring change no answer.

    plans: sent and not finished, the first of them being computed.
    """

    __slots__ = ("_cost", "_held", "_partial", "_sampled", "plans")

    def __init__(self, cost: StepCost, max_num_seqs: int) -> None:
        self.plans: deque[Plan] = deque()
        self._cost = cost
        self._held: dict[int, int] = {}
        # Answers are values, and there are few different ones.
        self._sampled = [SlotResult(slot, TOKEN) for slot in range(max_num_seqs)]
        self._partial = [SlotResult(slot) for slot in range(max_num_seqs)]

    def execute(self, plan: Plan) -> tuple[Result, float]:
        """The answer, and the seconds after which it comes."""
        held = self._held
        for slot in plan.released:
            held.pop(slot, None)
        for new in plan.admitted:
            held[new.slot] = len(new.tokens) + (new.num_prompt if new.like is not None else 0)
        answers: list[SlotResult] = []
        sampled, partial = self._sampled, self._partial
        tokens = pairs = 0
        for work in plan.work:
            slot, start, count = work.slot, work.start, work.count
            end = start + count
            tokens += count
            pairs += count * (start + end + 1)
            if end == held[slot]:
                held[slot] = end + 1
                answers.append(sampled[slot])
            else:
                answers.append(partial[slot])
        seconds = self._cost.seconds(tokens, len(answers), pairs // 2)
        return Result(plan.step, answers, seconds), seconds
