"""Whether a preempted sequence is computed again, or its blocks are kept for it."""

from __future__ import annotations

from penstock.config.settings import PreemptionMode
from penstock_engine.policies.forecast import StepCostForecast, first_token_after
from penstock_engine.request.request import Sequence


class Resumption:
    """Weighs computing tokens again against copying their blocks to the host and back.

    Keeping costs nothing until a block is needed for something else: only then it is copied, if
    there is a host tier, and else lost.  What tokens cost is forecast from the latest steps, in
    steps of `budget` tokens, which may shrink; what a copied block costs the worker measures when
    it starts.
    """

    def __init__(self, mode: PreemptionMode, cost: StepCostForecast, budget: int) -> None:
        self._mode = mode
        self._cost = cost
        self.budget = budget
        self._copy_seconds = 0.0
        self._has_host = False

    def attach(self, host_blocks: int, copy_seconds: float) -> None:
        """A worker is ready. copy_seconds: for a block, out and in again."""
        self._has_host = host_blocks > 0
        self._copy_seconds = copy_seconds

    def recomputes(self, victim: Sequence) -> bool:
        """Whether the blocks that only the victim holds are to be forgotten."""
        if self._mode != "auto":
            return self._mode == "recompute"
        if not self._has_host or victim.table is None:
            return False
        computing = first_token_after(self._cost, victim.progress.computed, self.budget)
        # 0: nothing is known yet.
        return 0.0 < computing < victim.table.num_blocks * self._copy_seconds
