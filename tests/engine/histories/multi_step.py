"""Random histories with steps that go on by themselves, and are disturbed at any token."""

from __future__ import annotations

from typing import Any

from tests.engine.scores import RequestScore
from tests.engine.walked_harness import Choices, make_harness
from tests.engine.walker import Walker


class MultiStepWalker(Walker):
    """Most requests are read at their end. Steps are short, and drafts are sometimes proposed."""

    def __init__(self, choose: Choices) -> None:
        super().__init__(make_harness(choose), choose)
        h = self.h
        h.goes_on = True
        h.step_seconds = lambda: 0.001
        h.proposes = lambda: max(0, choose.whole(-9, 2))
        h.disturbed = lambda: choose.whole(0, 9) == 0
        self.walks |= {"submit": (8, self.submit), "kill": (3, self.kill)}
        self._wheel = [name for name, (weight, _) in self.walks.items() for _ in range(weight)]
        self._submit = h.submit
        h.submit = self._read_at_the_end  # type: ignore[method-assign]

    def _read_at_the_end(self, *request: Any, **terms: Any) -> RequestScore:
        terms["gathered"] = self.choose.whole(0, 9) > 0
        if "emitted" not in terms and self.choose.whole(0, 4):  # One that resumes stays the same.
            terms |= {"grammar": None, "max_tokens": 40, "ignore_eos": True}
        return self._submit(*request, **terms)

    def kill(self) -> None:
        self.met["killed on the way"] += any(plan.extra_steps for plan, _ in self.h.plans)
        super().kill()

    def step(self) -> None:
        if self.h.worker is None:
            self.worker()
        plan = self.h.plan
        result = self.h.run_step()
        if plan is not None and plan.extra_steps and result is not None:
            self.met["went on"] += sum(len(each.more) for each in result.slots)
            self.met["followed"] += bool(self.h.plans)
