"""Steps of a model whose layers are spread over stages."""

from __future__ import annotations

import msgspec

from penstock.config.settings import SchedulerSettings
from penstock.protocol.to_worker import Plan, SlotWork
from penstock_engine.facts import EngineFacts
from penstock_engine.request.request import Sequence
from penstock_engine.request.step_builder import StepBuilder
from penstock_engine.scheduler.drafting import NoDrafter
from penstock_engine.scheduler.scheduler import Scheduler
from penstock_engine.scheduler.state import SchedulerState


class PipelineScheduler(Scheduler):
    """Keeps every stage busy: as many steps are in flight as there are stages at least.

    A first stage can't go on with a token that the last one hasn't sampled.  So a plan tells what
    earlier steps have sampled, and a sequence is in no step after one that samples for it; chunks
    of its prompt that don't may be in several, one after the other.  Decodes are dealt out: a step
    takes no more than its share of them, the longest unserved first, and leaves the others to the
    step after it.  Nothing is drafted: several stages would have to agree on it.
    """

    def __init__(
        self,
        state: SchedulerState,
        settings: SchedulerSettings,
        *,
        stages: int,
        whole: bool = False,
    ) -> None:
        super().__init__(state, settings, whole=whole, drafter=NoDrafter(state))
        self._stages = stages
        self._max_in_flight = max(self._max_in_flight, stages)
        self._reported: dict[int, int] = {}
        """Tokens that every stage has, by slot: set anew when a sequence is admitted to it."""
        self._share = 0
        """Decodes that the step may still take."""

    def plan(self) -> Plan | None:
        plan = super().plan()
        if plan is None:
            return None
        for new in plan.admitted:
            self._reported[new.slot] = self.state.running[new.slot].num_tokens
        return msgspec.structs.replace(plan, work=[self._reporting(work) for work in plan.work])

    def _reporting(self, work: SlotWork) -> SlotWork:
        """Returns a slot's work, with the tokens that the slot doesn't know yet.

        Nothing follows a step that samples before it is settled, so what is missing has been
        emitted, and is what the work ends with.
        """
        sequence = self.state.running[work.slot]
        missing = sequence.num_tokens - self._reported[work.slot]
        if not missing:
            return work
        self._reported[work.slot] = sequence.num_tokens
        return msgspec.structs.replace(work, sampled=sequence.emitted[-missing:].tolist())

    def _ahead(self) -> int:
        """A stage computes its part of each step."""
        return super()._ahead() // self._stages

    def _is_short(self) -> bool:
        """A long step is followed too, until every stage has one."""
        return len(self.state.in_flight) < self._stages or super()._is_short()

    def _runnable(self) -> tuple[list[Sequence], list[Sequence]]:
        """Decodes and chunks of sequences that may follow what is in flight of them."""
        decodes, chunks = super()._runnable()
        decodes = [sequence for sequence in decodes if _may_go_on(sequence)]
        chunks = [sequence for sequence in chunks if _may_go_on(sequence)]
        # Who lacks one token of what is expected of it decodes in its next step.
        decoding = sum(
            s.progress.expected - s.progress.scheduled == 1 for s in self.state.running.values()
        )
        self._share = -(-decoding // self._max_in_flight)
        if len(decodes) > self._share:
            decodes.sort(key=lambda sequence: sequence.progress.last_served)
        return decodes, chunks

    def _run_suspect(self, builder: StepBuilder) -> None:
        self._share = 1
        super()._run_suspect(builder)

    def _extend(self, sequence: Sequence, builder: StepBuilder, most: int | None = None) -> None:
        """Serves a sequence within the share, which counts those that got blocks."""
        decodes = self._computable(sequence) == 1
        if decodes and not self._share:
            return
        super()._extend(sequence, builder, most)
        self._share -= decodes and sequence.slot in builder.items


def _may_go_on(sequence: Sequence) -> bool:
    """Whether every stage has the tokens that it computes next.

    A chunk that tells about its prompt may fail by itself, which only the last stage finds out; it
    computes what follows all the same.
    """
    return not sequence.progress.in_flight or sequence.progress.expected == sequence.num_tokens


def make_scheduler(state: SchedulerState, facts: EngineFacts) -> Scheduler:
    """The scheduler for the stages that the model has."""
    settings, stages = facts.config.scheduler, facts.config.parallel.pipeline_parallel_size
    if stages == 1:
        return Scheduler(state, settings, whole=facts.whole)
    return PipelineScheduler(state, settings, stages=stages, whole=facts.whole)
