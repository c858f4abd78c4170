"""Decode steps that a worker computes without a plan for each (Plan.extra_steps)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Generic

import msgspec

from penstock.protocol.from_worker import SlotResult
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_worker.steps.kinds import Guard, Queued, StepKind, StepStart

Launches = Callable[[list[SlotWork], StepStart], list[Queued]]
Disturbed = Callable[[], bool]
"""Returns whether the engine core has said something that waits for the step's end."""


class MultiStepDecoding(Generic[Queued]):
    """Computes Plan.extra_steps.

    Each token is computed and sampled as by a plan of its own, of the same slots: only messages and
    what plans change are left out. If that fails for a slot, the next plan says so of it.
    """

    def __init__(self, kind: StepKind[Queued], launch: Launches[Queued], guard: Guard) -> None:
        """`launch` queues works that have not failed."""
        self._kind = kind
        self._launch = launch
        self._guard = guard

    def run(
        self, plan: Plan, queued: list[Queued], start: StepStart, disturbed: Disturbed
    ) -> dict[int, SlotResult]:
        """Returns the results of the plan's works, which have been queued, by slot, with what
        extra steps there are. Slots that are missing have failed."""
        start.settle_earlier()
        results = newest = self._settled(queued)
        works, ends = plan.work, frozenset(plan.ends)
        more: dict[int, list[SlotResult]] = {work.slot: [] for work in works}
        for _ in range(plan.extra_steps):
            if disturbed() or not _go_on(works, newest, ends, plan.least_proposed):
                break
            works = [SlotWork(work.slot, work.start + work.count, 1) for work in works]
            newest = self._settled(self._launch(works, start))
            for number, result in newest.items():
                if result.token is not None:
                    more[number].append(result)
        return {number: _joined(result, more[number]) for number, result in results.items()}

    def _settled(self, queued: list[Queued]) -> dict[int, SlotResult]:
        self._kind.check()
        results: dict[int, SlotResult] = {}
        for each in queued:
            results |= self._kind.settle(each, self._guard)
        return results


def _go_on(
    works: list[SlotWork],
    newest: Mapping[int, SlotResult],
    ends: Collection[int],
    least_proposed: int,
) -> bool:
    """Returns whether every slot has got a token, after which more are wanted, and drafts that can
    be proposed are too few to matter."""
    proposed = 0
    for work in works:
        result = newest.get(work.slot)
        if result is None or result.token is None or result.token in ends:
            return False
        proposed += result.proposed
    return not least_proposed or proposed < least_proposed


def _joined(first: SlotResult, more: list[SlotResult]) -> SlotResult:
    if not more:
        return first
    logprobs = [each.logprobs for each in more if each.logprobs is not None]
    return msgspec.structs.replace(
        first,
        more=[each.token for each in more if each.token is not None],
        more_logprobs=logprobs or None,
        proposed=more[-1].proposed,
        more_guessed=[each.guessed for each in more if each.guessed is not None],
    )
