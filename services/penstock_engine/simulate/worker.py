"""A worker that only takes time: it answers every plan with tokens that mean nothing."""

from __future__ import annotations

from collections import deque

from penstock.protocol.from_worker import Result, SlotResult
from penstock.protocol.to_worker import NewSequence, Plan
from penstock_engine.simulate.adapters import SlotsWithAdapters
from penstock_engine.simulate.cost import StepCost
from penstock_engine.simulate.drafts import SimulatedDrafts
from penstock_engine.simulate.prompts import ANSWER


class SimulatedWorker:
    """Knows how many tokens each slot has, and how many blocks are copied; whatever else a plan may
    bring changes nothing.

    plans: sent and not finished, the first of them being computed.
    """

    __slots__ = (
        "_adapters",
        "_cost",
        "_drafts",
        "_held",
        "_partial",
        "_prompts",
        "_sampled",
        "plans",
    )

    def __init__(
        self, cost: StepCost, max_num_seqs: int, drafts: SimulatedDrafts | None = None
    ) -> None:
        self.plans: deque[Plan] = deque()
        self._cost = cost
        self._drafts = drafts or SimulatedDrafts()
        self._adapters = SlotsWithAdapters()
        self._held: dict[int, int] = {}
        self._prompts: dict[int, int] = {}
        # Answers are values, and there are few different ones.
        self._sampled = [SlotResult(slot, ANSWER) for slot in range(max_num_seqs)]
        self._partial = [SlotResult(slot) for slot in range(max_num_seqs)]

    def execute(self, plan: Plan) -> tuple[Result, float]:
        """The answer, and the seconds after which it comes."""
        held = self._held
        for slot in plan.released:
            held.pop(slot, None)
            self._prompts.pop(slot, None)
        for new in plan.admitted:
            self._admit(new)
        self._adapters.take(plan)
        answers: list[SlotResult] = []
        sampled, partial, drafts = self._sampled, self._partial, self._drafts
        tokens = pairs = 0
        for work in plan.work:
            slot, count = work.slot, work.count
            start = held[slot] - count if work.after_drafts else work.start
            end = start + count
            tokens += count
            pairs += count * (start + end + 1)
            if end == held[slot]:
                answer = sampled[slot] if not drafts.tokens else drafts.answer(work, ANSWER)
                held[slot] = end + 1 + len(answer.more)
                tokens += answer.drafted
                pairs += answer.drafted * (2 * end + answer.drafted + 1)
                answers.append(answer)
            else:
                answers.append(partial[slot])
        seconds = self._cost.seconds(tokens, len(answers), pairs // 2, *self._adapters.extent(plan))
        seconds += self._cost.copying(len(plan.copies))
        return Result(plan.step, answers, seconds), seconds

    def _admit(self, new: NewSequence) -> None:
        if new.like is None:
            self._prompts[new.slot], shared = new.num_prompt, 0
        else:
            shared = self._prompts[new.slot] = self._prompts[new.like]
        self._held[new.slot] = shared + len(new.tokens)
